// A constraint that begins after the reasoning: what passes before the tag, the hand-over, and the way back.
#include <random>
#include <string>

#include "check.h"
#include "fake_grammar_library.h"
#include "structured/after_text.h"
#include "structured/grammar_matcher.h"

using namespace pocket;

namespace {

// 36 tokens, so that a mask has a second word that is not full.
constexpr std::int32_t kEnd = 0;
constexpr std::int32_t kThink = 1;
constexpr Opening kBegun = {};
constexpr Opening kMayBegin = {false, kThink};
const std::string kTag = "aab";

const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> tokens = [] {
    std::vector<std::string> made = {"\xff<end>", "\xff<think>", "a",    "b",   "x",   "y",  "aa",
                                     "ab",        "aab",         "aab ", "abx", "bxy", " ",  "\n\t",
                                     "",          "b \n",        "aabx", "xaa", "no",  "yes"};
    while (made.size() < 36) made.push_back("?" + std::to_string(made.size()));
    return made;
  }();
  return tokens;
}

std::int32_t id(const std::string& piece) {
  const auto found = std::find(vocabulary().begin(), vocabulary().end(), piece);
  CHECK(found != vocabulary().end());
  return static_cast<std::int32_t>(found - vocabulary().begin());
}

std::unique_ptr<GrammarMatcher> answer(const std::string& texts = "x|xy|yes") {
  return std::make_unique<GrammarMatcher>(fake_grammar::compile(vocabulary(), kEnd, texts),
                                          std::vector<std::int32_t>{kEnd});
}

AfterTextMatcher start(Opening opening, std::unique_ptr<GrammarMatcher> matcher = answer()) {
  return {std::move(matcher), std::make_shared<TagTokens>(vocabulary(), kTag), opening, {kEnd}};
}

std::vector<bool> mask(Matcher& matcher) {
  std::vector<std::uint32_t> row(3, ~0u);
  std::vector<bool> bits;
  if (!matcher.fill_mask(row.data(), 3)) return bits;
  for (std::size_t token = 0; token < 96; ++token) bits.push_back((row[token / 32] >> (token % 32) & 1) == 1);
  CHECK(std::find(bits.begin() + static_cast<std::ptrdiff_t>(vocabulary().size()), bits.end(), true) == bits.end());
  return bits;
}

bool allows(Matcher& matcher, std::int32_t token) {
  const std::vector<bool> bits = mask(matcher);
  CHECK(!bits.empty());
  return bits[static_cast<std::size_t>(token)];
}

void follow(Matcher& matcher, const std::vector<std::string>& pieces) {
  for (const std::string& piece : pieces) {
    CHECK(allows(matcher, id(piece)));
    CHECK(matcher.accept(id(piece)));
  }
}

bool is_layout(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

// The rules once more, over the whole text at every question; AfterTextMatcher keeps the tag's beginning alone.
class SlowAfterText {
 public:
  explicit SlowAfterText(Opening opening) : opening_(opening) {}

  bool allows(std::int32_t token) {
    replay();
    if (thinks_) return token != kEnd && !goes_past(text_ + vocabulary()[static_cast<std::size_t>(token)]);
    const std::vector<bool> bits = mask(*inner_);
    return (!bits.empty() && bits[static_cast<std::size_t>(token)]) || (tokens_.empty() && opens(token)) || pads(token);
  }

  bool is_error() {
    replay();
    return !thinks_ && mask(*inner_).empty();
  }

  bool is_done() {
    replay();
    return !thinks_ && inner_->is_done();
  }

  void accept(std::int32_t token) { tokens_.push_back(token); }
  void rollback(std::size_t num_tokens) { tokens_.resize(tokens_.size() - num_tokens); }

 private:
  static bool goes_past(const std::string& text) {
    const std::size_t place = text.find(kTag);
    return place != std::string::npos && !is_layout(text.substr(place + kTag.size()));
  }
  bool opens(std::int32_t token) const { return !opening_.is_begun && token == opening_.token; }
  bool pads(std::int32_t token) const {
    const std::string& piece = vocabulary()[static_cast<std::size_t>(token)];
    return num_padding_ > 0 && !piece.empty() && is_layout(piece);
  }

  void replay() {
    inner_ = answer();
    text_.clear();
    thinks_ = opening_.is_begun;
    num_padding_ = 0;
    for (std::size_t index = 0; index < tokens_.size(); ++index) {
      const std::int32_t token = tokens_[index];
      if (thinks_) {
        text_ += vocabulary()[static_cast<std::size_t>(token)];
        if (text_.find(kTag) == std::string::npos) continue;
        thinks_ = false;
        num_padding_ = 4;
      } else if (index == 0 && opens(token)) {
        thinks_ = true;
      } else if (inner_->accept(token)) {
        num_padding_ = 0;
      } else {
        --num_padding_;
      }
    }
  }

  Opening opening_;
  std::vector<std::int32_t> tokens_;
  std::unique_ptr<GrammarMatcher> inner_;
  std::string text_;
  bool thinks_ = false;
  int num_padding_ = 0;
};

}  // namespace

TEST(before_the_tag_everything_passes_but_stop_ids_and_tokens_that_go_past_it) {
  AfterTextMatcher matcher = start(kBegun);
  CHECK(!allows(matcher, kEnd));
  CHECK(!matcher.accept(kEnd));
  CHECK(!allows(matcher, id("aabx")));
  CHECK(!matcher.accept(id("aabx")));
  CHECK(!matcher.is_done());
  for (const char* piece : {"a", "x", "aab", "aab ", "no", "", " ", "?35"}) CHECK(allows(matcher, id(piece)));
  CHECK(allows(matcher, id("abx")));
  follow(matcher, {"x", "a"});
  CHECK(!allows(matcher, id("abx")));
  CHECK(allows(matcher, id("bxy")));
  follow(matcher, {"a"});
  CHECK(!allows(matcher, id("bxy")));
  CHECK(allows(matcher, id("b \n")));
}

TEST(a_tag_in_several_tokens_hands_over_to_the_constraint) {
  AfterTextMatcher matcher = start(kBegun);
  follow(matcher, {"a", "xaa", "a", "b"});
  CHECK(!allows(matcher, id("no")));
  CHECK(!allows(matcher, kEnd));
  follow(matcher, {"x"});
  CHECK(allows(matcher, kEnd));
  CHECK(matcher.accept(kEnd));
  CHECK(matcher.is_done());
}

TEST(four_tokens_of_white_space_may_stand_between_the_tag_and_the_answer) {
  AfterTextMatcher matcher = start(kBegun);
  follow(matcher, {"aab ", " ", "\n\t", " ", " "});
  CHECK(!allows(matcher, id(" ")));
  CHECK(!matcher.accept(id(" ")));
  follow(matcher, {"yes"});
  AfterTextMatcher other = start(kBegun);
  follow(other, {"aab", " ", "x"});
  CHECK(!allows(other, id(" ")));
}

TEST(reasoning_that_the_completion_may_begin_begins_with_the_first_token_or_never) {
  AfterTextMatcher begins = start(kMayBegin);
  CHECK(allows(begins, id("x")));
  CHECK(!allows(begins, id("no")));
  CHECK(begins.accept(kThink));
  follow(begins, {"no", "aab", "x"});
  AfterTextMatcher answers = start(kMayBegin);
  follow(answers, {"x"});
  CHECK(!allows(answers, kThink));
  CHECK(!answers.accept(kThink));
  AfterTextMatcher cannot_begin = start({false, -1});
  CHECK(!allows(cannot_begin, kThink));
  CHECK(!cannot_begin.accept(id("no")));
  follow(cannot_begin, {"yes"});
}

TEST(a_rollback_crosses_the_tag_and_restores_what_was_allowed) {
  AfterTextMatcher matcher = start(kMayBegin);
  std::vector<std::vector<bool>> before;
  const std::vector<std::string> pieces = {"a", "a", "b", " ", "x", "y"};
  before.push_back(mask(matcher));
  CHECK(matcher.accept(kThink));
  for (const std::string& piece : pieces) {
    before.push_back(mask(matcher));
    follow(matcher, {piece});
  }
  CHECK(!matcher.rollback(8));
  CHECK_EQUAL(std::string(matcher.error()), "cannot take back 8 of 7 tokens");
  CHECK(!matcher.rollback(-1));
  CHECK(matcher.rollback(0));
  CHECK(matcher.rollback(1));
  CHECK(mask(matcher) == before[6]);
  CHECK(matcher.rollback(4));
  CHECK(mask(matcher) == before[2]);
  follow(matcher, {"a", "b", "yes"});
  CHECK(matcher.rollback(5));
  CHECK(mask(matcher) == before[0]);
}

TEST(the_constraints_own_error_is_the_error) {
  AfterTextMatcher matcher = start(kBegun, answer("xz"));
  follow(matcher, {"aab", "x"});
  CHECK(mask(matcher).empty());
  CHECK_EQUAL(std::string(matcher.error()), "No token of this vocabulary continues the text under its constraint.");
}

TEST(a_token_outside_the_vocabulary_is_refused_by_number) {
  AfterTextMatcher matcher = start(kBegun);
  for (const std::int32_t token : {std::int32_t{-1}, std::int32_t{36}, std::int32_t{1 << 30}}) {
    CHECK(!matcher.accept(token));
    CHECK_EQUAL(std::string(matcher.error()), "The constraint does not allow token " + std::to_string(token) + " here.");
  }
}

TEST(random_walks_agree_with_the_rules_over_the_whole_text) {
  std::mt19937 random(11);
  for (const Opening opening : {kBegun, kMayBegin, Opening{false, -1}}) {
    for (int walk = 0; walk < 60; ++walk) {
      AfterTextMatcher matcher = start(opening);
      SlowAfterText reference(opening);
      std::size_t num_accepted = 0;
      for (int step = 0; step < 40; ++step) {
        CHECK_EQUAL(matcher.is_done(), reference.is_done());
        const std::vector<bool> bits = mask(matcher);
        CHECK_EQUAL(bits.empty(), reference.is_error());
        for (std::size_t token = 0; token < vocabulary().size() && !bits.empty(); ++token) {
          CHECK_EQUAL(static_cast<bool>(bits[token]), reference.allows(static_cast<std::int32_t>(token)));
        }
        if (random() % 6 == 0) {
          const std::size_t count = random() % (std::min<std::size_t>(num_accepted, 6) + 1);
          CHECK(matcher.rollback(static_cast<std::int64_t>(count)));
          reference.rollback(count);
          num_accepted -= count;
          continue;
        }
        // The tag's own letters often, so that it is met in many cuts.
        const auto token = static_cast<std::int32_t>(random() % 3 == 0 ? random() % 36 : 2 + random() % 18);
        const bool taken = matcher.accept(token);
        CHECK_EQUAL(taken, !bits.empty() && reference.allows(token));
        if (taken) reference.accept(token);
        num_accepted += taken;
      }
    }
  }
}
