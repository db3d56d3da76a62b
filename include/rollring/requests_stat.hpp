#pragma once
// A former name, until version 0.2.
#include "rollring/extras/requests.hpp"
