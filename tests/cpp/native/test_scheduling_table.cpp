// Runs every scenario of tests/scheduling/steps.json. The format and the policy it tells are in the README beside it.
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "check.h"
#include "core/json.h"
#include "scheduler_bench.h"

using namespace pocket;
using scheduling::Bench, scheduling::Options, scheduling::text;

namespace {

std::string read_file(const char* path) {
  std::ifstream file(path);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error(std::string{path} + " cannot be read");
  return content;
}

std::int64_t int_or(const JsonValue& object, const char* key, std::int64_t otherwise) {
  const JsonValue* value = object.find(key);
  return value == nullptr ? otherwise : value->as_int();
}

Options options_of(const JsonValue& scenario) {
  const JsonValue& given = scenario.at("options");
  Options options;
  options.num_blocks = static_cast<std::int32_t>(int_or(given, "num_blocks", options.num_blocks));
  options.num_slots = static_cast<std::int32_t>(int_or(given, "num_slots", options.num_slots));
  options.budget = int_or(given, "prefill_token_budget", options.budget);
  options.beside_decodes = int_or(given, "prefill_tokens_beside_decodes", options.beside_decodes);
  options.cache = false;
  for (const JsonValue& need : scenario.at("needs").items()) {
    if (need.as_string() == "prefix_cache") {
      options.cache = true;
    } else if (need.as_string() == "recurrent_state") {
      options.recurrent = true;
    } else if (need.as_string() != "drafts") {
      throw std::runtime_error("unknown need: " + need.as_string());
    }
  }
  return options;
}

void add(Bench& bench, const JsonValue& request) {
  std::vector<std::int32_t> prompt;
  if (const JsonValue* before = request.find("continues")) {
    prompt = bench.sequences.at(static_cast<std::size_t>(before->as_int()))->tokens;
  }
  for (const JsonValue& piece : request.at("prompt").items()) {
    const auto tokens = text(piece.items()[0].as_int(), static_cast<std::int32_t>(piece.items()[1].as_int()));
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
  const JsonValue* prompt_logprobs = request.find("prompt_logprobs");
  bench.add(prompt, static_cast<std::size_t>(int_or(request, "num_choices", 1)), int_or(request, "priority", 0),
            prompt_logprobs != nullptr && prompt_logprobs->as_bool(), int_or(request, "max_tokens", 1000));
}

std::int64_t count_of(const Bench& bench, const std::string& name) {
  const SchedulerCounts& counts = bench.scheduler.counts();
  if (name == "num_running") return std::ssize(bench.scheduler.running());
  if (name == "num_waiting") return bench.scheduler.num_waiting();
  if (name == "num_free_slots") return bench.scheduler.num_free_slots();
  if (name == "num_free_blocks") return bench.pool.num_free();
  if (name == "num_preemptions") return counts.num_preemptions;
  if (name == "cache_hits") return counts.cache_hits;
  if (name == "cache_misses") return counts.cache_misses;
  if (name == "num_reused_tokens") return counts.num_reused_tokens;
  if (name == "num_snapshots" && bench.states != nullptr) return bench.states->num_snapshots();
  throw std::runtime_error("unknown count: " + name);
}

std::int64_t num_shared_blocks(const Bench& bench, const JsonValue& pair) {
  const auto& a = bench.sequences.at(static_cast<std::size_t>(pair.items()[0].as_int()))->blocks;
  const auto& b = bench.sequences.at(static_cast<std::size_t>(pair.items()[1].as_int()))->blocks;
  const auto common = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  CHECK(std::find_first_of(common.first, a.end(), common.second, b.end()) == a.end());
  return common.first - a.begin();
}

void act(Bench& bench, const std::string& action, const JsonValue& value) {
  if (action == "add") {
    add(bench, value);
  } else if (action == "steps") {
    for (const JsonValue& step : value.items()) CHECK_EQUAL(bench.step(), step.as_string());
  } else if (action == "run") {
    for (std::int64_t count = value.as_int(); count > 0; --count) bench.step();
  } else if (action == "finish") {
    bench.scheduler.finish(*bench.sequences.at(static_cast<std::size_t>(value.as_int())));
  } else if (action == "draft") {
    auto& draft = bench.proposals.next[static_cast<std::uint64_t>(value.at("sequence").as_int())];
    for (const JsonValue& token : value.at("tokens").items()) {
      draft.push_back(static_cast<std::int32_t>(token.as_int()));
    }
  } else if (action == "set_budget") {
    bench.scheduler.set_prefill_token_budget(value.at("prefill_token_budget").as_int(),
                                             int_or(value, "prefill_tokens_beside_decodes", 0));
  } else if (action == "expect") {
    for (const JsonMember& each : value.members()) {
      const std::int64_t count = count_of(bench, each.name);
      if (count != each.value.as_int()) throw std::runtime_error(each.name + " is " + std::to_string(count));
    }
  } else if (action == "expect_shared_blocks") {
    CHECK_EQUAL(num_shared_blocks(bench, value.at("of")), value.at("num_blocks").as_int());
  } else {
    throw std::runtime_error("unknown action: " + action);
  }
}

void run(const JsonValue& scenario) {
  Bench bench(options_of(scenario));
  std::int64_t index = 0;
  for (const JsonValue& action : scenario.at("actions").items()) {
    for (const JsonMember& each : action.members()) {
      try {
        act(bench, each.name, each.value);
      } catch (const std::exception& error) {
        throw std::runtime_error("action " + std::to_string(index) + " (" + each.name + "): " + error.what());
      }
    }
    ++index;
  }
  bench.finish_all();
}

}  // namespace

TEST(every_scenario_of_the_table_takes_the_steps_it_says) {
  const std::string json = read_file(SCHEDULING_TABLE);
  const JsonValue table = parse_json(json, {}, "steps.json");
  CHECK(!table.items().empty());
  std::string failures;
  for (const JsonValue& scenario : table.items()) {
    try {
      run(scenario);
    } catch (const std::exception& error) {
      failures += "\n  " + scenario.at("name").as_string() + ": " + error.what();
    }
  }
  if (!failures.empty()) throw std::runtime_error(failures);
}
