#include "cc/core/records.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "cc/core/formulas/forward.h"

namespace tf_bn_ops {

std::atomic<bool> is_recording{false};

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, Record> records;
};
// Neither it nor a record is ever freed: kernels run while the process ends.
std::atomic<Registry*> registry{new Registry};
thread_local std::string label;

}  // namespace

struct Record {
  static constexpr size_t kMostDims = 5;

  // Of a call, for `last`.
  Registry* home = nullptr;
  std::string label;
  size_t rank = 0;
  int64_t dims[kMostDims] = {};

  std::atomic<int64_t> number{0}, nanoseconds{0}, bytes{0};

  void Add(int64_t time, int64_t size) {
    number.fetch_add(1, std::memory_order_relaxed);
    nanoseconds.fetch_add(time, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
  bool IsOf(const RecordedCall& call) const {
    return home == registry.load(std::memory_order_relaxed) &&
           rank == call.rank && std::equal(dims, dims + rank, call.dims) &&
           label == tf_bn_ops::label;
  }
};

namespace {

// The record with these fields, which `begin` makes if there is none.
template <typename Begin>
Record& Find(const std::string& fields, const std::string& others,
             const Begin& begin) {
  Registry* const all = registry.load();
  const std::lock_guard<std::mutex> lock(all->mutex);
  const auto found = all->records.find(fields);
  if (found != all->records.end()) return found->second;
  const bool is_full = all->records.size() >= kMostRecords;
  Record& record = all->records[is_full ? others : fields];
  if (!is_full) begin(all, &record);
  return record;
}

}  // namespace

int64_t BytesOf(const Call& call) {
  int64_t bytes = 0;
  for (int i = 0; i < kNumRoles; ++i) {
    const Role role = static_cast<Role>(i);
    if (ArrayOf(call, role) == nullptr) continue;
    const ArrayKind kind = kRoles[i].kind;
    const int64_t elements = kind == ArrayKind::kView ? NumElements(call.view)
                             : kind == ArrayKind::kScalar ? 1
                             : kind == ArrayKind::kCoefficients
                                 ? kNumForwardCoefficients * call.view.channels
                                 : call.view.channels;
    bytes += elements * static_cast<int64_t>(SizeOf(DTypeOf(call, role)));
  }
  return bytes;
}

void RecordCall(const RecordedCall& call, int64_t begin,
                std::atomic<Record*>* last) try {
  const int64_t time =
      std::chrono::steady_clock::now().time_since_epoch().count() - begin;
  Record* record = last == nullptr ? nullptr : last->load();
  if (record == nullptr || !record->IsOf(call)) {
    std::string kind, shape;
    for (const std::string_view field :
         {std::string_view(kDirections[static_cast<int>(call.direction)]),
          call.op, std::string_view(kDTypeTexts[static_cast<int>(call.dtype)]),
          std::string_view(call.device)}) {
      kind.append(1, '\t').append(field);
    }
    for (size_t i = 0; i < call.rank; ++i) {
      shape.append(i == 0 ? "" : "x").append(std::to_string(call.dims[i]));
    }
    std::string fields = "call\t";
    fields.append(label.empty() ? call.place : label);
    record = &Find(fields + kind + "\t" + shape,
                   "call\t(others)" + kind + "\tvarious",
                   [&](Registry* home, Record* made) {
                     if (call.rank > Record::kMostDims) return;
                     made->label = label;
                     made->rank = call.rank;
                     std::copy_n(call.dims, call.rank, made->dims);
                     made->home = home;
                   });
    if (last != nullptr) last->store(record);
  }
  record->Add(time, call.bytes);
} catch (const std::bad_alloc&) {  // A call does not fail over its record.
}

void Count(const std::string& fields, const std::string& others) try {
  Find(fields, others, [](Registry*, Record*) {}).Add(0, 0);
} catch (const std::bad_alloc&) {
}

}  // namespace tf_bn_ops

void tfbn_record_calls(int on) { tf_bn_ops::is_recording = on != 0; }

void tfbn_label_calls(const char* place) try {
  tf_bn_ops::label = place;
} catch (const std::bad_alloc&) {
}

size_t tfbn_records(char* text, size_t size) try {
  std::string lines;
  tf_bn_ops::Registry& all = *tf_bn_ops::registry.load();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [fields, record] : all.records) {
    lines += fields;
    for (const auto* total :
         {&record.number, &record.nanoseconds, &record.bytes}) {
      lines.append(1, '\t').append(std::to_string(total->load()));
    }
    lines += '\n';
  }
  if (lines.size() <= size) std::memcpy(text, lines.data(), lines.size());
  return lines.size();
} catch (const std::bad_alloc&) {
  return 0;
}

void tfbn_forget_records() {
  // What another thread of the parent had locked stays so in a fork.
  auto* const anew = new (std::nothrow) tf_bn_ops::Registry;
  if (anew != nullptr) tf_bn_ops::registry = anew;
}
