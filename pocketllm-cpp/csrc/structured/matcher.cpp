#include "structured/matcher.h"

#include <exception>

namespace pocket {
namespace {

// Nothing may be thrown into the engine; the only thing that can be is a lack of memory.
template <class Call>
int guarded(void* object, int failed, Call call) noexcept {
  try {
    return call(*static_cast<Matcher*>(object));
  } catch (const std::exception&) {
    return failed;
  }
}

int fill_mask(void* object, std::uint32_t* words, std::int64_t num_words) noexcept {
  return guarded(object, 1, [&](Matcher& matcher) { return matcher.fill_mask(words, num_words) ? 0 : 1; });
}

int accept(void* object, std::int32_t token) noexcept {
  return guarded(object, 1, [&](Matcher& matcher) { return matcher.accept(token) ? 0 : 1; });
}

int rollback(void* object, std::int64_t num_tokens) noexcept {
  return guarded(object, 1, [&](Matcher& matcher) { return matcher.rollback(num_tokens) ? 0 : 1; });
}

int is_done(void* object) noexcept {
  return guarded(object, 0, [](Matcher& matcher) { return matcher.is_done() ? 1 : 0; });
}

const char* error(void* object) noexcept { return static_cast<Matcher*>(object)->error(); }

void release(void* object) noexcept {
  const std::unique_ptr<Matcher> owned(static_cast<Matcher*>(object));
}

constexpr MatcherFunctions kFunctions = {fill_mask, accept, rollback, is_done, error, release};

}  // namespace

MatcherPointers as_pointers(std::unique_ptr<Matcher> matcher) { return {&kFunctions, matcher.release()}; }

}  // namespace pocket
