// Loads libtf_bn_ops.so into the process: see tf_bn_ops/ops.h.

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <mutex>  // NOLINT: std::mutex serves as well as TensorFlow's

#include "absl/strings/str_cat.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/core/framework/op.h"
#include "tf_bn_ops/ops.h"

namespace tf_bn_ops {
namespace {

constexpr char kLibrary[] = "libtf_bn_ops.so";
constexpr char kCore[] = "libtf_bn_ops_core.so";  // Which it links.
constexpr char kVariable[] = "TF_BN_OPS_LIBRARY";

bool IsRegistered() {
  return tensorflow::OpRegistry::Global()->LookUp(
             "TfBnOps>FusedBatchNormGrad") != nullptr;
}

// The folder of the library that this function is linked into.
std::string OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) == 0) return ".";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

absl::Status LoadOpLibrary(const std::string& path) {
  static std::mutex* const mutex = new std::mutex;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (IsRegistered()) return absl::OkStatus();

  std::string file = path;
  const char* advice = "pass the path of one to tf_bn_ops::LoadOpLibrary()";
  if (file.empty()) {
    // Not of a process with the rights of another user: it would load a
    // library that the caller names.
    const char* const variable = secure_getenv(kVariable);
    if (variable != nullptr && *variable != '\0') {
      file = variable;
      advice =
          "TF_BN_OPS_LIBRARY, which names it, must name a libtf_bn_ops.so or "
          "its folder";
    } else {
      file = OwnFolder();
    }
  }
  // The dynamic loader would look for a name without a folder elsewhere.
  if (file.find('/') == std::string::npos) file = absl::StrCat("./", file);
  if (access(absl::StrCat(file, "/.").c_str(), F_OK) == 0) {  // A folder.
    absl::StrAppend(&file, "/", kLibrary);
  }
  if (access(file.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(file, " does not exist: ", advice));
  }

  const std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status(
      TF_NewStatus(), &TF_DeleteStatus);
  TF_Library* const library = TF_LoadLibrary(file.c_str(), status.get());
  if (library != nullptr) TF_DeleteLibraryHandle(library);  // does not unload
  if (TF_GetCode(status.get()) != TF_OK) {
    const std::string message = TF_Message(status.get());
    const bool lacks_core = message.rfind(absl::StrCat(kCore, ": "), 0) == 0;
    return absl::FailedPreconditionError(absl::StrCat(
        file, " cannot be loaded by TensorFlow ", TF_Version(), " (", message,
        lacks_core ? "): copy that file beside it, from where it comes from"
                   : "): build it for this TensorFlow with 'make "
                     "PYTHON=/path/to/its/python'"));
  }
  if (!IsRegistered()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " holds no ops of tf_bn_ops: pass the path of ",
                     kLibrary, " to tf_bn_ops::LoadOpLibrary()"));
  }
  return absl::OkStatus();
}

}  // namespace tf_bn_ops
