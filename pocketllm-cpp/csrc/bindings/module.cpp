#include "bindings/init.h"

NB_MODULE(_native, module) {
  // An interpreter that ends does not free everything; a user need not read of it.
  nanobind::set_leak_warnings(false);
  module.doc() = "The engine as it is in C++. Private to pocketllm_cpp, whose Python modules say what is public.";
  pocket::init_error(module);
  pocket::init_config(module);
  pocket::init_model(module);
  pocket::init_runtime(module);
  pocket::init_request(module);
  pocket::init_session(module);
  pocket::init_engine(module);
  pocket::init_grammar(module);
}
