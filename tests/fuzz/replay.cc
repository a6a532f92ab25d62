// Runs a fuzz target on files and random variations of them without a fuzzing
// engine, so that the tests can do so with any compiler.
//
//   replay VARIATIONS FILE...
//
// Each file as it is, then VARIATIONS times with bytes changed, removed or
// inserted; the seed is fixed.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()),
                         bytes.size());
}

std::string Varied(std::string bytes, std::mt19937& random) {
  for (int edits = 1 + random() % 4; edits > 0; --edits) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 3) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, random() % 8);
        break;
      default:
        bytes.insert(at, 1, static_cast<char>(random()));
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const int variations = argc > 1 ? std::atoi(argv[1]) : 0;
  std::mt19937 random(1);
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) {
      std::fprintf(stderr, "error: %s cannot be read\n", argv[i]);
      return 1;
    }
    Run(bytes);
    for (int v = 0; v < variations; ++v) Run(Varied(bytes, random));
  }
  std::printf("%d files, %d variations of each\n", argc - 2, variations);
  return 0;
}
