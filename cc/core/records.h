// What ran in this process and how often: the source of tf_bn_ops.report().
//
// The registry is in the core library, which the ops, the kernels for
// TensorFlow's ops, XLA's custom call and the graph optimizer share. A record
// has fields of text, which Python splits at tabs, and three totals. There are
// at most kMostRecords and one for each kind of the others.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cc/core/call.h"
#include "cc/core/host_device.h"

namespace tf_bn_ops {

constexpr size_t kMostRecords = 4096;

extern std::atomic<bool> is_recording TFBN_SHARED("is_recording");

// Nanoseconds on the clock of records; 0 where calls are not recorded, which
// costs a call this one load.
inline int64_t BeginOfCall() {
  if (!is_recording.load(std::memory_order_relaxed)) return 0;
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

struct RecordedCall {
  std::string_view place;  // Name of the node, unless the thread has a label.
  std::string_view op;
  const char* device;
  FormulaKind direction;
  DType dtype;
  const int64_t* dims;  // The shape of x.
  size_t rank;
  int64_t bytes;  // Of all arrays that it reads or writes, each once.
};

int64_t BytesOf(const Call& call) TFBN_SHARED("call_bytes");

// Adds a call that began at `begin` and ends now. `last`, if any, belongs to a
// kernel, whose calls differ in label and shape alone: a call like the one
// before finds its record in a tenth of the time that a search takes.
struct Record;
void RecordCall(const RecordedCall& call, int64_t begin,
                std::atomic<Record*>* last) TFBN_SHARED("record_call");

// Adds 1 to the record of a kind ("kind\tfield\t..."); where the registry is
// full, to the record `others`.
void Count(const std::string& fields, const std::string& others)
    TFBN_SHARED("count");

}  // namespace tf_bn_ops

// What Python calls.
#pragma GCC visibility push(default)
extern "C" {
void tfbn_record_calls(int on);
// The place of the calling thread's calls from now on; "": each node's own.
void tfbn_label_calls(const char* place);
// Writes the records as lines that end in their number, nanoseconds and bytes.
// Returns their length; nothing is written that is longer than `size`.
size_t tfbn_records(char* text, size_t size);
// Starts anew, also in a fork of a process that was just adding a record.
void tfbn_forget_records();
}
#pragma GCC visibility pop
