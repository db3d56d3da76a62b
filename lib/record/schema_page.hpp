#pragma once
// A schema in the form of the ring's schema page.

#include "layout.hpp"
#include "rollring/schema.hpp"

namespace rollring {

SchemaPage to_page(const Schema& schema);

// Checks everything: the page may come from a damaged or foreign object.
Result<Schema> from_page(const SchemaPage& page);

}  // namespace rollring
