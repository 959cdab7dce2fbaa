#include "structured/grammar_matcher.h"

#include <algorithm>
#include <utility>

namespace pocket {

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<std::int32_t> stop_ids)
    : grammar_(std::move(grammar)),
      stop_ids_(std::move(stop_ids)),
      matcher_(grammar_->start()),
      row_(static_cast<std::size_t>(grammar_->vocabulary().num_words())) {}

bool GrammarMatcher::is_stop_id(std::int32_t token) const noexcept {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

bool GrammarMatcher::allows_end() {
  return !stopped_ && !library().is_error(matcher_.get()) && library().is_accepting(matcher_.get());
}

bool GrammarMatcher::is_done() { return stopped_ || (library().is_stopped(matcher_.get()) && allows_end()); }

bool GrammarMatcher::fill_mask(std::uint32_t* words, std::int64_t num_words) {
  const auto native = static_cast<std::int64_t>(row_.size());
  std::uint32_t* target = num_words == native ? words : row_.data();
  if (!compute(target)) {
    start_again();
    if (!compute(target)) {
      const char* reason = library().get_error(matcher_.get());
      error_ = std::string("The constraint cannot be followed any further: ") + (reason == nullptr ? "" : reason);
      return false;
    }
  }
  const bool complete = allows_end();
  set_bit(target, native, grammar_->vocabulary().end_token(), false);
  for (const std::int32_t token : stop_ids_) set_bit(target, native, token, complete);
  if (target != words) {
    std::fill_n(words, num_words, 0u);
    std::copy_n(target, std::min(native, num_words), words);
  }
  const bool is_empty = std::all_of(target, target + native, [](std::uint32_t word) { return word == 0; });
  if (is_empty && !(complete && stop_ids_.empty())) {
    error_ = "No token of this vocabulary continues the text under its constraint.";
    return false;
  }
  return true;
}

// False: the library is in an error, and what it wrote means nothing.
bool GrammarMatcher::compute(std::uint32_t* words) {
  if (stopped_ || is_stuck()) {
    std::fill_n(words, row_.size(), 0u);
    return true;
  }
  return library().compute_mask_into(matcher_.get(), words, row_.size() * sizeof(std::uint32_t)) == 0 &&
         !library().is_error(matcher_.get());
}

// The library's lexer has a limit of states, which a fresh one has not met yet.
void GrammarMatcher::start_again() {
  matcher_ = grammar_->start();
  if (!tokens_.empty()) library().consume_tokens(matcher_.get(), tokens_.data(), tokens_.size());
}

bool GrammarMatcher::accept(std::int32_t token) {
  refuse(token);
  if (stopped_) return false;
  if (is_stop_id(token)) {
    stopped_ = allows_end();
    return stopped_;
  }
  if (token == grammar_->vocabulary().end_token() || token < 0 || token >= grammar_->vocabulary().size()) return false;
  if (!consume(token)) {
    if (!library().is_error(matcher_.get())) return false;
    start_again();
    if (!consume(token)) return false;
  }
  tokens_.push_back(static_cast<std::uint32_t>(token));
  return true;
}

bool GrammarMatcher::consume(std::int32_t token) {
  const auto id = static_cast<std::uint32_t>(token);
  return !library().is_stopped(matcher_.get()) && library().validate_tokens(matcher_.get(), &id, 1) == 1 &&
         library().consume_tokens(matcher_.get(), &id, 1) == 0;
}

bool GrammarMatcher::rollback(std::int64_t num_tokens) {
  const std::int64_t num_accepted = static_cast<std::int64_t>(tokens_.size()) + (stopped_ ? 1 : 0);
  if (num_tokens < 0 || num_tokens > num_accepted) {
    error_ = "cannot take back " + std::to_string(num_tokens) + " of " + std::to_string(num_accepted) + " tokens";
    return false;
  }
  if (num_tokens == 0) return true;
  const std::int64_t num_consumed = num_tokens - (stopped_ ? 1 : 0);
  stopped_ = false;
  if (num_consumed == 0) return true;
  tokens_.resize(tokens_.size() - static_cast<std::size_t>(num_consumed));
  if (library().rollback(matcher_.get(), static_cast<std::size_t>(num_consumed)) == 0) return true;
  start_again();
  if (!library().is_error(matcher_.get())) return true;
  error_ = "The constraint cannot be rolled back.";
  return false;
}

}  // namespace pocket
