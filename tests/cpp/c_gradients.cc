// Differentiates a graph by TensorFlow's C API alone, as other languages do:
//
//   c_gradients LIBRARY GRAPH NUM_OUTPUTS NUM_INPUTS RESULT
//
// GRAPH is a GraphDef with nodes y0, y1, ... and x0, x1, ...; writes it with
// the gradients of the sum of the former by the latter to RESULT, and prints
// their names, "-" where there is none.

#include <stdio.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"

TF_Status* const status = TF_NewStatus();

void Check() {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s\n", TF_Message(status));
  exit(1);
}

std::vector<TF_Output> Nodes(TF_Graph* graph, const char* letter, int count) {
  std::vector<TF_Output> nodes;
  for (int i = 0; i < count; ++i) {
    const std::string name = letter + std::to_string(i);
    nodes.push_back({TF_GraphOperationByName(graph, name.c_str()), 0});
  }
  return nodes;
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  TF_LoadLibrary(argv[1], status);
  Check();
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  TF_Graph* const graph = TF_NewGraph();
  TF_GraphImportGraphDef(graph,
                         TF_NewBufferFromString(text.data(), text.size()),
                         TF_NewImportGraphDefOptions(), status);
  Check();
  auto y = Nodes(graph, "y", atoi(argv[3])),
       x = Nodes(graph, "x", atoi(argv[4]));
  std::vector<TF_Output> dx(x.size());
  TF_AddGradients(graph, y.data(), y.size(), x.data(), x.size(), nullptr,
                  status, dx.data());
  Check();
  for (const TF_Output& gradient : dx) {
    if (gradient.oper == nullptr) {
      puts("-");
    } else {
      printf("%s:%d\n", TF_OperationName(gradient.oper), gradient.index);
    }
  }
  TF_Buffer* const result = TF_NewBuffer();
  TF_GraphToGraphDef(graph, result, status);
  Check();
  std::ofstream(argv[5], std::ios::binary)
      .write(static_cast<const char*>(result->data), result->length);
  return 0;
}
