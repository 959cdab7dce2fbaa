// Random numbers that depend on a sequence's seed and the position of a token, and on nothing else.
//
// A counter-based generator: no state to keep, so a preempted sequence, another batch or another backend draws the same
// number for the same token. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, 2014).
#pragma once

#include <cstdint>

namespace pocket {

inline constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t mix_bits(std::uint64_t word) noexcept {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

// A number in [0, 1) with 53 random bits.
constexpr double uniform(std::uint64_t seed, std::uint64_t counter) noexcept {
  const std::uint64_t key = mix_bits(seed + kGoldenGamma);
  const std::uint64_t word = mix_bits(key ^ mix_bits((counter + 1) * kGoldenGamma));
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

}  // namespace pocket
