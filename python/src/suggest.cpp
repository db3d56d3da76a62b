#include "suggest.hpp"

namespace rollring::python {

std::string did_you_mean(std::string_view given, const nb::list& known) {
    const nb::object close = nb::module_::import_("difflib").attr("get_close_matches");
    const nb::list found(close(nb::str(given.data(), given.size()), known, 1));
    if (nb::len(found) == 0) return {};
    return ": did you mean " + nb::cast<std::string>(found[0]) + "?";
}

}  // namespace rollring::python
