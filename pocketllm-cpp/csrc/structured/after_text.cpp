#include "structured/after_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace pocket {
namespace {

constexpr int kMaxPaddingTokens = 4;
constexpr std::string_view kLayout = " \t\r\n";

bool is_layout(std::string_view text) noexcept { return text.find_first_not_of(kLayout) == std::string_view::npos; }

bool holds(const std::vector<std::int32_t>& ids, std::int32_t token) noexcept {
  return std::binary_search(ids.begin(), ids.end(), token);
}

}  // namespace

TagTokens::TagTokens(std::vector<std::string> tokens, std::string tag)
    : tokens_(std::move(tokens)), tag_(std::move(tag)), past_(tag_.size()) {
  for (std::int32_t token = 0; token < vocab_size(); ++token) {
    const std::string& text = piece(token);
    if (text.empty()) continue;
    if (is_layout(text)) blank_.push_back(token);
    // Only a token that holds the tag's last byte, and more after it, can go past the tag.
    if (std::string_view(text).substr(0, text.size() - 1).find(tag_.back()) == std::string_view::npos) continue;
    for (std::size_t written = 0; written < tag_.size(); ++written) {
      if (goes_past(tag_.substr(0, written) + text)) past_[written].push_back(token);
    }
  }
}

bool TagTokens::goes_past(const std::string& text) const {
  const std::size_t place = text.find(tag_);
  return place != std::string::npos && !is_layout(std::string_view(text).substr(place + tag_.size()));
}

AfterTextMatcher::AfterTextMatcher(std::unique_ptr<Matcher> matcher, std::shared_ptr<const TagTokens> tokens,
                                   Opening opening, std::vector<std::int32_t> stop_ids)
    : matcher_(std::move(matcher)),
      tokens_(std::move(tokens)),
      opening_token_(opening.token),
      stop_ids_(std::move(stop_ids)),
      may_open_(!opening.is_begun && opening.token >= 0) {
  if (opening.is_begun) num_written_ = 0;
  std::sort(stop_ids_.begin(), stop_ids_.end());
}

bool AfterTextMatcher::fill_mask(std::uint32_t* words, std::int64_t num_words) {
  if (!num_written_) {
    if (!matcher_->fill_mask(words, num_words)) {
      error_ = matcher_->error();
      return false;
    }
    if (may_open_) set_bit(words, num_words, opening_token_, true);
    if (num_padding_ > 0) {
      for (const std::int32_t token : tokens_->blank()) set_bit(words, num_words, token, true);
    }
    return true;
  }
  const std::int64_t num_full = std::min(tokens_->vocab_size() / 32, num_words);
  std::fill_n(words, num_full, ~0u);
  std::fill_n(words + num_full, num_words - num_full, 0u);
  for (std::int64_t token = num_full * 32; token < tokens_->vocab_size(); ++token) {
    set_bit(words, num_words, static_cast<std::int32_t>(token), true);
  }
  for (const std::int32_t token : stop_ids_) set_bit(words, num_words, token, false);
  for (const std::int32_t token : tokens_->past(*num_written_)) set_bit(words, num_words, token, false);
  return true;
}

bool AfterTextMatcher::accept(std::int32_t token) {
  refuse(token);
  if (token < 0 || token >= tokens_->vocab_size()) return false;
  Moment before{num_written_, may_open_, num_padding_, false};
  if (!num_written_) {
    if (may_open_ && token == opening_token_) {
      num_written_ = 0;
    } else if (matcher_->accept(token)) {
      before.consumed = true;
      num_padding_ = 0;
    } else if (num_padding_ > 0 && holds(tokens_->blank(), token)) {
      --num_padding_;
    } else {
      return false;
    }
  } else if (holds(stop_ids_, token) || holds(tokens_->past(*num_written_), token)) {
    return false;
  } else {
    read(tokens_->piece(token));
  }
  may_open_ = false;
  history_.push_back(before);
  return true;
}

void AfterTextMatcher::read(const std::string& piece) {
  const std::string& tag = tokens_->tag();
  const std::string text = tag.substr(0, *num_written_) + piece;
  if (text.find(tag) != std::string::npos) {
    num_written_.reset();
    num_padding_ = kMaxPaddingTokens;
    return;
  }
  // All that matters of the past is how much of the tag it may already hold.
  std::size_t kept = std::min(tag.size() - 1, text.size());
  while (kept > 0 && std::string_view(text).substr(text.size() - kept) != std::string_view(tag).substr(0, kept)) --kept;
  num_written_ = kept;
}

bool AfterTextMatcher::rollback(std::int64_t num_tokens) {
  const auto num_accepted = static_cast<std::int64_t>(history_.size());
  if (num_tokens < 0 || num_tokens > num_accepted) {
    error_ = "cannot take back " + std::to_string(num_tokens) + " of " + std::to_string(num_accepted) + " tokens";
    return false;
  }
  if (num_tokens == 0) return true;
  const auto first = history_.end() - num_tokens;
  const std::int64_t num_consumed = std::count_if(first, history_.end(), [](const Moment& m) { return m.consumed; });
  num_written_ = first->num_written;
  may_open_ = first->may_open;
  num_padding_ = first->num_padding;
  history_.erase(first, history_.end());
  if (matcher_->rollback(num_consumed)) return true;
  error_ = matcher_->error();
  return false;
}

}  // namespace pocket
