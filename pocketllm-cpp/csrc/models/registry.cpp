#include <utility>

#include "core/error.h"
#include "models/config.h"
#include "models/families.h"
#include "models/model.h"

namespace pocket {

bool has_family(const std::string& model_type) noexcept { return family_of(model_type).has_value(); }

std::vector<std::string> families() { return family_names(); }

std::unique_ptr<Model> load_model(Context& context, const std::string& config, const TensorSource& source,
                                  const ModelOptions& options, const Progress& progress) {
  LoadRequest request{.context = context,
                      .config = read_model_config(config),
                      .source = source,
                      .options = options,
                      .progress = progress};
  if (options.num_layers < 0 || options.num_layers > request.config.num_layers) {
    throw Error(ErrorKind::kConfiguration,
                "num_layers = " + std::to_string(options.num_layers) + ", but the model has " +
                    std::to_string(request.config.num_layers) + ". Give 0 for all of them.",
                "num_layers");
  }
  if (options.num_layers > 0) {
    request.config.num_layers = options.num_layers;
    request.config.layers.resize(static_cast<std::size_t>(options.num_layers));
  }
  switch (*family_of(request.config.model_type)) {
    case Family::kLlama:
      return load_llama(request);
    case Family::kQwen2:
      return load_qwen2(request);
    case Family::kQwen3:
      return load_qwen3(request);
    case Family::kGemma3:
      return load_gemma3(request);
    case Family::kQwen3_5:
      return load_qwen3_5(request);
  }
  throw Error(ErrorKind::kEngine, "A family without a loader.");
}

}  // namespace pocket
