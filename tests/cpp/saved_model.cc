// A server that knows nothing of this library: loads a SavedModel through
// TensorFlow's C API, runs it once, prints the first output.
//
// usage: saved_model FOLDER INPUT OUTPUT N,H,W,C [LIBRARY] < float32 values
//
// INPUT and OUTPUT are tensors of the signature ("name:0"). LIBRARY is loaded
// first, by TF_LoadLibrary.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"

namespace {

TF_Status* const g_status = TF_NewStatus();

void Check(const char* step) {
  if (TF_GetCode(g_status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", step, TF_Message(g_status));
  exit(1);
}

TF_Output Find(TF_Graph* graph, const std::string& name) {
  const size_t colon = name.rfind(':');
  TF_Operation* op =
      TF_GraphOperationByName(graph, name.substr(0, colon).c_str());
  if (op == nullptr) {
    fprintf(stderr, "no tensor %s\n", name.c_str());
    exit(1);
  }
  return {op, std::atoi(name.c_str() + colon + 1)};
}

TF_Tensor* ReadInput(const std::string& text) {
  std::vector<int64_t> dims;
  int64_t count = 1;
  std::stringstream stream(text);
  for (std::string dim; std::getline(stream, dim, ',');) {
    dims.push_back(std::atoll(dim.c_str()));
    count *= dims.back();
  }
  TF_Tensor* tensor = TF_AllocateTensor(
      TF_FLOAT, dims.data(), static_cast<int>(dims.size()), count * 4);
  if (fread(TF_TensorData(tensor), 4, count, stdin) !=
      static_cast<size_t>(count)) {
    fprintf(stderr, "the input is too short\n");
    exit(1);
  }
  return tensor;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  if (argc > 5) {
    TF_LoadLibrary(argv[5], g_status);
    Check("TF_LoadLibrary");
  }
  TF_Graph* const graph = TF_NewGraph();
  const char* const tags[] = {"serve"};
  TF_Session* const session =
      TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), nullptr, argv[1],
                                   tags, 1, graph, nullptr, g_status);
  Check("TF_LoadSessionFromSavedModel");
  const TF_Output input = Find(graph, argv[2]), output = Find(graph, argv[3]);
  TF_Tensor* const x = ReadInput(argv[4]);
  TF_Tensor* result = nullptr;
  TF_SessionRun(session, nullptr, &input, &x, 1, &output, &result, 1, nullptr,
                0, nullptr, g_status);
  Check("TF_SessionRun");
  const float* values = static_cast<const float*>(TF_TensorData(result));
  for (size_t i = 0; i < TF_TensorByteSize(result) / 4; ++i) {
    printf("%.9g\n", values[i]);
  }
  return 0;
}
