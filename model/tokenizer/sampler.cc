#include "quire/model/sampler.h"
