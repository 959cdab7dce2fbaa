#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/init.h"
#include "core/error.h"
#include "structured/after_text.h"
#include "structured/grammar.h"
#include "structured/grammar_matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pocket {
namespace {

using IntegerByName = nb::typed<nb::dict, nb::str, int>;
using TokenList = nb::typed<nb::list, nb::bytes>;

template <class Function>
void find(const nb::dict& addresses, const char* name, Function& function) {
  if (!addresses.contains(name)) {
    throw Error(ErrorKind::kConfiguration, std::string("The grammar library's functions lack ") + name + ".");
  }
  function = reinterpret_cast<Function>(nb::cast<std::uintptr_t>(addresses[name]));
}

GrammarLibrary library_at(const nb::dict& addresses) {
  GrammarLibrary library;
  find(addresses, "llg_new_tokenizer_v2", library.new_tokenizer);
  find(addresses, "llg_free_tokenizer", library.free_tokenizer);
  find(addresses, "llg_constraint_init_set_defaults", library.set_defaults);
  find(addresses, "llg_new_matcher", library.new_matcher);
  find(addresses, "llg_clone_matcher", library.clone_matcher);
  find(addresses, "llg_free_matcher", library.free_matcher);
  find(addresses, "llg_matcher_compute_mask_into", library.compute_mask_into);
  find(addresses, "llg_matcher_validate_tokens", library.validate_tokens);
  find(addresses, "llg_matcher_consume_tokens", library.consume_tokens);
  find(addresses, "llg_matcher_rollback", library.rollback);
  find(addresses, "llg_matcher_is_accepting", library.is_accepting);
  find(addresses, "llg_matcher_is_stopped", library.is_stopped);
  find(addresses, "llg_matcher_is_error", library.is_error);
  find(addresses, "llg_matcher_get_error", library.get_error);
  return library;
}

std::vector<std::string> pieces_of(const TokenList& tokens) {
  std::vector<std::string> pieces;
  for (const nb::handle token : tokens) {
    const auto piece = nb::cast<nb::bytes>(token);
    pieces.emplace_back(piece.c_str(), piece.size());
  }
  return pieces;
}

std::shared_ptr<TagTokens> make_tag_tokens(const TokenList& tokens, std::string tag) {
  std::vector<std::string> pieces = pieces_of(tokens);
  nb::gil_scoped_release release;
  return std::make_shared<TagTokens>(std::move(pieces), std::move(tag));
}

std::shared_ptr<GrammarVocabulary> make_vocabulary(const IntegerByName& functions, const TokenList& tokens,
                                                   std::int32_t end_token) {
  const GrammarLibrary library = library_at(functions);
  const std::vector<std::string> pieces = pieces_of(tokens);
  nb::gil_scoped_release release;
  return std::make_shared<GrammarVocabulary>(library, pieces, end_token);
}

LlgParserLimits limits_from(const IntegerByName& values) {
  LlgParserLimits limits;
  limits.max_items_in_row = nb::cast<std::size_t>(values["max_items_in_row"]);
  limits.initial_lexer_fuel = nb::cast<std::uint64_t>(values["initial_lexer_fuel"]);
  limits.step_lexer_fuel = nb::cast<std::uint64_t>(values["step_lexer_fuel"]);
  limits.step_max_items = nb::cast<std::size_t>(values["step_max_items"]);
  limits.max_lexer_states = nb::cast<std::size_t>(values["max_lexer_states"]);
  limits.max_grammar_size = nb::cast<std::size_t>(values["max_grammar_size"]);
  return limits;
}

std::shared_ptr<Grammar> make_grammar(std::shared_ptr<GrammarVocabulary> vocabulary, std::string text,
                                      const IntegerByName& limits) {
  const LlgParserLimits checked = limits_from(limits);
  nb::gil_scoped_release release;
  return std::make_shared<Grammar>(std::move(vocabulary), std::move(text), checked);
}

nb::tuple matcher_pointers(std::shared_ptr<Grammar> grammar, std::vector<std::int32_t> stop_ids,
                           std::shared_ptr<TagTokens> after, bool is_begun, std::int32_t opening_token) {
  MatcherPointers matcher;
  {
    nb::gil_scoped_release release;
    std::unique_ptr<Matcher> made = std::make_unique<GrammarMatcher>(std::move(grammar), stop_ids);
    if (after != nullptr) {
      const Opening opening{is_begun, opening_token};
      made = std::make_unique<AfterTextMatcher>(std::move(made), std::move(after), opening, std::move(stop_ids));
    }
    matcher = as_pointers(std::move(made));
  }
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(matcher.functions),
                        reinterpret_cast<std::uintptr_t>(matcher.object));
}

}  // namespace

void init_grammar(nb::module_& module) {
  nb::class_<GrammarVocabulary>(module, "GrammarVocabulary", "A vocabulary as the grammar library indexes it. Making one takes a fraction of a second, without the interpreter's "
                                      "lock; immutable, so any thread. Raises ConfigurationError when the library refuses it.")
      .def(nb::new_(&make_vocabulary), "functions"_a, "tokens"_a, "end_token"_a);
  nb::class_<TagTokens>(module, "TagTokens", "What a vocabulary has to do with the tag that ends the reasoning: which tokens are white space, and which would go "
                              "past the tag. Immutable, so any thread.")
      .def(nb::new_(&make_tag_tokens), "tokens"_a, "tag"_a);
  nb::class_<Grammar>(module, "Grammar", "One compiled constraint, from text in the grammar library's own format. Any thread. Raises ConfigurationError when "
                            "the library refuses it.")
      .def(nb::new_(&make_grammar), "vocabulary"_a, "text"_a, "limits"_a)
      .def("matcher_pointers", &matcher_pointers, "stop_ids"_a, "after"_a = nb::none(), "is_begun"_a = true,
           "opening_token"_a = -1,
           nb::sig("def matcher_pointers(self, stop_ids: collections.abc.Sequence[int], after: TagTokens | None = None, "
                   "is_begun: bool = True, opening_token: int = -1) -> tuple[int, int]"),
           "A matcher at the start of the text, as the addresses of its table of functions and of its object. The caller "
           "calls the table's release once; Engine.submit takes that over. Needs no interpreter's lock afterwards.");
}

}  // namespace pocket
