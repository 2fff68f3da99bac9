#include "quire/model/thread_pool.h"
