#include "kernels/reference/operations.h"

#include <vector>

#include "kernels/reference/memory.h"

namespace pocket::reference {
namespace {

struct KeptSequences final : DeviceObject {
  using DeviceObject::DeviceObject;

  std::vector<SequenceRows> rows;
  std::vector<std::vector<std::int32_t>> blocks;  // of each
};

std::unique_ptr<DeviceObject> keep_sequences(Context& context, std::span<const SequenceRows> rows,
                                             std::unique_ptr<DeviceObject>) {
  auto kept = std::make_unique<KeptSequences>(context.device);
  for (const SequenceRows& each : rows) {
    kept->blocks.emplace_back(each.blocks.begin(), each.blocks.end());
    kept->rows.push_back(each);
    kept->rows.back().blocks = kept->blocks.back();
  }
  return kept;
}

Operations make_operations() noexcept {
  Operations table{};
  table.keep_sequences = keep_sequences;
  add_attention(table);
  add_delta_net(table);
  add_elementwise(table);
  add_linear(table);
  add_routing(table);
  add_sampling(table);
  return table;
}

}  // namespace

std::span<const SequenceRows> rows_of(const Context& context, const SequenceTable& sequences) {
  return own<const KeptSequences>(context, *sequences.on_device(), "A table of sequences").rows;
}

Context open(ThreadPool& threads) {
  static const Operations table = make_operations();
  return {device(), table, threads};
}

}  // namespace pocket::reference
