// Grammars followed over a fake of the grammar library: masks, ends, roll-backs, limits, errors, ownership.
#include <array>
#include <random>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "fake_grammar_library.h"
#include "refusals.h"
#include "structured/grammar_matcher.h"

using namespace pocket;

namespace {

// 40 tokens, so that a mask has a second word: the end, single bytes, some pairs, and fillers that no text holds.
constexpr std::int32_t kEnd = 0;
constexpr std::int32_t kOtherStop = 1;
const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> tokens = [] {
    std::vector<std::string> made = {"\xff<end>", "\xff<other>", "r", "e", "d", "g", "n", "i", "s", "h", "re", "een"};
    while (made.size() < 38) made.push_back("?" + std::to_string(made.size()));
    made.insert(made.end(), {"green", "ish"});
    return made;
  }();
  return tokens;
}

std::int32_t id(const std::string& piece) {
  const auto found = std::find(vocabulary().begin(), vocabulary().end(), piece);
  CHECK(found != vocabulary().end());
  return static_cast<std::int32_t>(found - vocabulary().begin());
}

GrammarMatcher start(const std::string& text, std::vector<std::int32_t> stop_ids = {kEnd},
                     std::size_t max_states = fake_grammar::kNoLimit) {
  return {fake_grammar::compile(vocabulary(), kEnd, text, max_states), std::move(stop_ids)};
}

using Row = std::array<std::uint32_t, 2>;

// The tokens of a mask, as text: "d" "ish" <end> is "d,ish,<0>".
std::string allowed(Matcher& matcher) {
  Row row = {~0u, ~0u};
  if (!matcher.fill_mask(row.data(), 2)) return std::string("error: ") + matcher.error();
  std::string names;
  for (std::int32_t token = 0; token < 64; ++token) {
    if ((row[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1) == 0) continue;
    CHECK(token < static_cast<std::int32_t>(vocabulary().size()));
    names += (names.empty() ? "" : ",");
    names += token <= kOtherStop ? "<" + std::to_string(token) + ">" : vocabulary()[static_cast<std::size_t>(token)];
  }
  return names;
}

void follow(Matcher& matcher, const std::vector<std::string>& pieces) {
  for (const std::string& piece : pieces) CHECK(matcher.accept(id(piece)));
}

}  // namespace

TEST(a_mask_holds_the_tokens_that_continue_the_text) {
  GrammarMatcher matcher = start("red|green|greenish");
  CHECK_EQUAL(allowed(matcher), "r,g,re,green");
  follow(matcher, {"g", "re"});
  CHECK_EQUAL(allowed(matcher), "e");
  follow(matcher, {"e", "n"});
  CHECK_EQUAL(allowed(matcher), "<0>,i,ish");
}

TEST(stop_ids_are_allowed_exactly_where_the_text_is_complete) {
  GrammarMatcher matcher = start("green|greenish", {kOtherStop});
  CHECK(!matcher.accept(kOtherStop));
  follow(matcher, {"green"});
  CHECK_EQUAL(allowed(matcher), "<1>,i,ish");
  // The vocabulary's own end is a stop id of another request.
  CHECK(!matcher.accept(kEnd));
  CHECK(!matcher.is_done());
  CHECK(matcher.accept(kOtherStop));
  CHECK(matcher.is_done());
  CHECK_EQUAL(allowed(matcher), "error: No token of this vocabulary continues the text under its constraint.");
  CHECK(!matcher.accept(id("ish")));
}

TEST(a_text_that_cannot_grow_is_done_and_waits_for_a_stop_id_alone) {
  GrammarMatcher matcher = start("red");
  follow(matcher, {"re", "d"});
  CHECK(matcher.is_done());
  CHECK_EQUAL(allowed(matcher), "<0>");
  GrammarMatcher without_stop_ids = start("red", {});
  follow(without_stop_ids, {"re", "d"});
  CHECK(without_stop_ids.is_done());
  CHECK_EQUAL(allowed(without_stop_ids), "");
}

TEST(a_refused_token_leaves_the_matcher_where_it_was_and_is_named) {
  GrammarMatcher matcher = start("red|green");
  follow(matcher, {"g"});
  for (const std::int32_t token : {id("e"), kEnd, std::int32_t{-1}, std::int32_t{40}, std::int32_t{1000}}) {
    CHECK(!matcher.accept(token));
    CHECK_EQUAL(std::string(matcher.error()), "The constraint does not allow token " + std::to_string(token) + " here.");
    CHECK_EQUAL(allowed(matcher), "r,re");
  }
}

TEST(a_rollback_takes_back_tokens_and_the_stop_id) {
  GrammarMatcher matcher = start("green|greenish");
  follow(matcher, {"g", "re"});
  CHECK(matcher.accept(id("e")));
  CHECK(matcher.accept(id("n")));
  CHECK(matcher.accept(kEnd));
  CHECK(matcher.rollback(0));
  CHECK(matcher.is_done());
  CHECK(matcher.rollback(1));
  CHECK_EQUAL(allowed(matcher), "<0>,i,ish");
  CHECK(matcher.accept(kEnd));
  CHECK(matcher.rollback(4));
  CHECK_EQUAL(allowed(matcher), "r,re");
  CHECK(!matcher.rollback(2));
  CHECK_EQUAL(std::string(matcher.error()), "cannot take back 2 of 1 tokens");
  CHECK(!matcher.rollback(-1));
  CHECK_EQUAL(allowed(matcher), "r,re");
}

TEST(a_rollback_that_the_library_refuses_starts_the_text_again) {
  GrammarMatcher matcher = start("green|greenish");
  follow(matcher, {"g", "re", "e", "n"});
  fake_grammar::refuses_rollback = true;
  const bool taken_back = matcher.rollback(3);
  fake_grammar::refuses_rollback = false;
  CHECK(taken_back);
  CHECK_EQUAL(allowed(matcher), "r,re");
}

TEST(a_matcher_out_of_lexer_states_starts_again_and_agrees_with_one_that_has_no_limit) {
  std::mt19937 random(7);
  for (int walk = 0; walk < 50; ++walk) {
    GrammarMatcher limited = start("red|green|greenish|greenishgreen", {kEnd}, 20);
    GrammarMatcher free = start("red|green|greenish|greenishgreen", {kEnd});
    int num_accepted = 0;
    for (int step = 0; step < 40; ++step) {
      CHECK_EQUAL(allowed(limited), allowed(free));
      if (random() % 4 == 0) {
        const int count = static_cast<int>(random() % static_cast<unsigned>(num_accepted + 1));
        CHECK(limited.rollback(count));
        CHECK(free.rollback(count));
        num_accepted -= count;
        continue;
      }
      const auto token = static_cast<std::int32_t>(random() % vocabulary().size());
      const bool taken = free.accept(token);
      CHECK_EQUAL(limited.accept(token), taken);
      num_accepted += taken;
    }
  }
}

TEST(a_text_too_long_for_a_fresh_lexer_is_an_error_with_the_librarys_reason) {
  GrammarMatcher matcher = start("green|greenish", {kEnd}, 5);
  follow(matcher, {"g", "re"});
  CHECK_EQUAL(allowed(matcher), "error: The constraint cannot be followed any further: too many lexer states");
}

TEST(a_vocabulary_that_cannot_spell_the_rest_is_an_error) {
  GrammarMatcher matcher = start("redx");
  follow(matcher, {"re", "d"});
  CHECK(!matcher.is_done());
  CHECK_EQUAL(allowed(matcher), "error: No token of this vocabulary continues the text under its constraint.");
}

TEST(a_row_wider_or_narrower_than_the_vocabulary_gets_what_fits) {
  GrammarMatcher matcher = start("red|green");
  std::array<std::uint32_t, 4> wide = {~0u, ~0u, ~0u, ~0u};
  CHECK(matcher.fill_mask(wide.data(), 4));
  Row exact = {};
  CHECK(matcher.fill_mask(exact.data(), 2));
  CHECK(wide[0] == exact[0] && wide[1] == exact[1] && wide[2] == 0 && wide[3] == 0);
  std::array<std::uint32_t, 2> narrow = {0, 0xABCDu};
  CHECK(matcher.fill_mask(narrow.data(), 1));
  CHECK(narrow[0] == exact[0] && narrow[1] == 0xABCDu);
}

TEST(what_the_library_refuses_is_an_error_with_its_reason_and_leaks_nothing) {
  CHECK(refuses([] { fake_grammar::compile({}, 0, "red"); }, "The grammar library refuses the vocabulary: no tokens",
                ErrorKind::kConfiguration));
  CHECK(refuses([] { fake_grammar::compile(vocabulary(), kEnd, "red|"); },
                "The grammar library refuses the constraint: an empty text", ErrorKind::kConfiguration));
  CHECK_EQUAL(fake_grammar::num_matchers.load(), 0);
  CHECK_EQUAL(fake_grammar::num_tokenizers.load(), 0);
}

TEST(matchers_of_one_grammar_start_on_many_threads_and_outlive_their_owners) {
  {
    std::vector<std::thread> threads;
    const auto grammar = fake_grammar::compile(vocabulary(), kEnd, "red|green");
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([held = std::shared_ptr<const Grammar>(grammar)]() mutable {
        for (int turn = 0; turn < 50; ++turn) {
          GrammarMatcher matcher(held, {kEnd});
          CHECK_EQUAL(allowed(matcher), "r,g,re,green");
          CHECK(matcher.accept(id("green")));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK_EQUAL(fake_grammar::num_matchers.load(), 0);
  CHECK_EQUAL(fake_grammar::num_tokenizers.load(), 0);
}

TEST(the_engine_calls_a_matcher_by_its_table_and_releases_it_once) {
  MatcherPointers pointers;
  {
    auto grammar = fake_grammar::compile(vocabulary(), kEnd, "red");
    pointers = as_pointers(std::make_unique<GrammarMatcher>(grammar, std::vector<std::int32_t>{kEnd}));
  }
  const MatcherFunctions& call = *pointers.functions;
  Row row = {};
  CHECK_EQUAL(call.fill_mask(pointers.object, row.data(), 2), 0);
  CHECK_EQUAL(row[0], (1u << id("r")) | (1u << id("re")));
  CHECK_EQUAL(call.accept(pointers.object, id("d")), 1);
  CHECK_EQUAL(std::string(call.error(pointers.object)), "The constraint does not allow token 4 here.");
  CHECK_EQUAL(call.accept(pointers.object, id("re")), 0);
  CHECK_EQUAL(call.is_done(pointers.object), 0);
  CHECK_EQUAL(call.accept(pointers.object, id("d")), 0);
  CHECK_EQUAL(call.is_done(pointers.object), 1);
  CHECK_EQUAL(call.rollback(pointers.object, 3), 1);
  CHECK_EQUAL(call.rollback(pointers.object, 2), 0);
  CHECK_EQUAL(fake_grammar::num_matchers.load(), 2);  // the template and this one's
  call.release(pointers.object);
  CHECK_EQUAL(fake_grammar::num_matchers.load(), 0);
  CHECK_EQUAL(fake_grammar::num_tokenizers.load(), 0);
}

TEST(what_a_matcher_throws_is_a_failure_and_never_reaches_the_engine) {
  struct Thrower : Matcher {
    bool fill_mask(std::uint32_t*, std::int64_t) override { throw std::bad_alloc(); }
    bool accept(std::int32_t) override { throw std::bad_alloc(); }
    bool rollback(std::int64_t) override { throw std::bad_alloc(); }
    bool is_done() override { throw std::bad_alloc(); }
  };
  const MatcherPointers pointers = as_pointers(std::make_unique<Thrower>());
  Row row = {};
  CHECK_EQUAL(pointers.functions->fill_mask(pointers.object, row.data(), 2), 1);
  CHECK_EQUAL(pointers.functions->accept(pointers.object, 2), 1);
  CHECK_EQUAL(pointers.functions->rollback(pointers.object, 1), 1);
  CHECK_EQUAL(pointers.functions->is_done(pointers.object), 0);
  pointers.functions->release(pointers.object);
}
