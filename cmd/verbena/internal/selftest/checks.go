// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"slices"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/links"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/verbs"
)

// checks are all checks, in their order.
var checks = slices.Concat(verbs.Checks, links.Checks)
