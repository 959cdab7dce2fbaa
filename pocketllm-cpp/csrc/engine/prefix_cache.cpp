#include "engine/prefix_cache.h"

#include <algorithm>

#include "engine/random_numbers.h"

namespace pocket {
namespace {

// Two chains of SplitMix64's finaliser that start and step differently.
BlockKey step(const BlockKey& key, std::uint64_t word) noexcept {
  return {mix_bits(key.low + word * kGoldenGamma + 1), mix_bits((key.high ^ word) + kGoldenGamma) ^ key.high >> 7};
}

BlockKey root(std::string_view salt) noexcept {
  BlockKey key{salt.size(), ~std::uint64_t{salt.size()}};
  for (const char letter : salt) key = step(key, static_cast<unsigned char>(letter));
  return key;
}

}  // namespace

void PrefixCache::extend_keys(std::string_view salt, std::span<const std::int32_t> tokens,
                              std::vector<BlockKey>& keys) const {
  const std::size_t num_full = tokens.size() / block_size_;
  keys.reserve(num_full);
  while (keys.size() < num_full) {
    BlockKey key = keys.empty() ? root(salt) : keys.back();
    const std::size_t first = keys.size() * block_size_;
    for (const std::int32_t token : tokens.subspan(first, block_size_)) {
      key = step(key, static_cast<std::uint32_t>(token));
    }
    keys.push_back(key);
  }
}

PrefixCache::PrefixCache(BlockPool& pool, StatePool* states, std::int32_t block_size)
    : pool_(pool),
      states_(states),
      block_size_(static_cast<std::size_t>(block_size)),
      contents_(static_cast<std::size_t>(pool.num_blocks())) {
  pool_.on_give_up([this](std::int32_t block) { drop(block); });
}

PrefixCache::~PrefixCache() { pool_.on_give_up(nullptr); }

void PrefixCache::match(std::string_view salt, std::span<const BlockKey> keys, std::span<const std::int32_t> tokens,
                        std::vector<std::int32_t>& blocks) const {
  blocks.clear();
  std::int32_t parent = -1;
  for (std::size_t index = 0; index < keys.size(); ++index) {
    const auto found = blocks_.find(keys[index]);
    if (found == blocks_.end()) return;
    if (!holds(found->second, salt, parent, tokens.subspan(index * block_size_, block_size_))) return;
    parent = found->second;
    blocks.push_back(parent);
  }
}

std::int32_t PrefixCache::insert(std::string_view salt, const BlockKey& key, std::int32_t parent,
                                 std::span<const std::int32_t> tokens, std::int32_t block) {
  if (const auto found = blocks_.find(key); found != blocks_.end()) {
    return holds(found->second, salt, parent, tokens) ? found->second : kCollision;
  }
  Content& content = contents_[static_cast<std::size_t>(block)];
  content.key = key;
  content.parent = parent;
  content.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(block_size_));
  content.salt.assign(parent < 0 ? salt : std::string_view{});
  blocks_.emplace(key, block);
  pool_.keep(block);
  return block;
}

bool PrefixCache::holds(std::int32_t block, std::string_view salt, std::int32_t parent,
                        std::span<const std::int32_t> tokens) const noexcept {
  const Content& content = contents_[static_cast<std::size_t>(block)];
  return content.parent == parent && (parent >= 0 || content.salt == salt) &&
         std::equal(content.tokens.begin(), content.tokens.end(), tokens.begin());
}

void PrefixCache::drop(std::int32_t block) {
  blocks_.erase(contents_[static_cast<std::size_t>(block)].key);
  if (states_ != nullptr) states_->drop(block);
}

void PrefixCache::clear() {
  for (const auto& [key, block] : blocks_) {
    if (states_ != nullptr) states_->drop(block);
    pool_.forget(block);
  }
  blocks_.clear();
  ++generation_;
}

}  // namespace pocket
