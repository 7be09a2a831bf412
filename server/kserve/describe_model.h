// SPDX-License-Identifier: Apache-2.0
//
// Models in the words of KServe's messages.
#pragma once

#include "kserve/v2/inference.pb.h"
#include "server/kserve/model_counts.h"
#include "server/kserve/models.h"

namespace gemmd {

inference::ModelMetadataResponse MetadataOf(const Model& model);
inference::ModelConfigResponse ConfigOf(const Model& model);
inference::ModelStatistics StatisticsOf(const Model& model, const ModelTotals& totals);
inference::RepositoryIndexResponse IndexOf(const std::vector<Model>& models, bool only_ready);

}  // namespace gemmd
