// Finds the cache blocks whose content a new prompt begins with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/block_pool.h"
#include "engine/state_pool.h"

namespace pocket {

// Names a full block by everything up to its end: salt and tokens.
struct BlockKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};

// Full blocks by key. A hit is compared token for token and along its chain, so equal keys of different texts do no
// harm. Threads: the engine's alone.
class PrefixCache {
 public:
  // `states` (optional) loses the snapshots of blocks that are given up. Both must outlive the cache.
  PrefixCache(BlockPool& pool, StatePool* states, std::int32_t block_size);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Appends the keys of the full blocks of `tokens` that `keys` has not yet. Any thread.
  void extend_keys(std::string_view salt, std::span<const std::int32_t> tokens, std::vector<BlockKey>& keys) const;

  // The blocks of the longest beginning of `tokens` that is cached, at most keys.size(); not yet held.
  void match(std::string_view salt, std::span<const BlockKey> keys, std::span<const std::int32_t> tokens,
             std::vector<std::int32_t>& blocks) const;

  static constexpr std::int32_t kCollision = -1;
  // Keeps `block` as the one that follows blocks `parent` (-1: the first). Returns the block that holds this content
  // from now on: `block`, or the one that had it already; kCollision when another text has the key.
  std::int32_t insert(std::string_view salt, const BlockKey& key, std::int32_t parent,
                      std::span<const std::int32_t> tokens, std::int32_t block);

  // Forgets everything; blocks in use stay with their holders.
  void clear();
  // Changes with clear(): what was inserted before is not to be continued.
  std::uint64_t generation() const noexcept { return generation_; }
  std::int32_t num_blocks() const noexcept { return static_cast<std::int32_t>(blocks_.size()); }

 private:
  struct KeyHash {
    std::size_t operator()(const BlockKey& key) const noexcept { return static_cast<std::size_t>(key.low); }
  };
  struct Content {
    BlockKey key;
    std::int32_t parent = -1;
    std::vector<std::int32_t> tokens;  // [block_size]
    std::string salt;  // of first blocks; the others have it from their parents
  };

  bool holds(std::int32_t block, std::string_view salt, std::int32_t parent,
             std::span<const std::int32_t> tokens) const noexcept;
  void drop(std::int32_t block);

  BlockPool& pool_;
  StatePool* states_;
  std::size_t block_size_;
  std::unordered_map<BlockKey, std::int32_t, KeyHash> blocks_;
  std::vector<Content> contents_;  // by block
  std::uint64_t generation_ = 0;
};

}  // namespace pocket
