// Loads the gradients for C++ with the ops, so that TF_AddGradients of
// TensorFlow's C API finds them in every language.
//
// They are in the client library, because they are written for
// tensorflow::Scope, which is in libtensorflow_cc.so.2. A TensorFlow without
// that library, as one that is a single libtensorflow.so, loads the ops
// nevertheless.

#include <dlfcn.h>

#include <string>

#include "cc/tf/ops/first_copy.h"

namespace tf_bn_ops {
namespace {

constexpr char kClient[] = "libtf_bn_ops_client.so";

bool IsLoaded(const char* library) {
  return dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

bool LoadGradients() {
  // Not another TensorFlow than the process has; and a program that is linked
  // with the client library has the gradients already.
  if (!IsLoaded("libtensorflow_cc.so.2") || IsLoaded(kClient)) return false;
  Dl_info own;
  if (dladdr(reinterpret_cast<void*>(&LoadGradients), &own) == 0) return false;
  const std::string path = own.dli_fname;
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  return dlopen((folder + kClient).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
}

[[maybe_unused]] const bool kLoaded = IsFirstCopy() && LoadGradients();

}  // namespace
}  // namespace tf_bn_ops
