// SPDX-License-Identifier: Apache-2.0

package verbena

import (
	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor/diagnose"
)

// version returns what --version prints.
func version() string { return program.Version("verbena") + "\n" + diagnose.Libraries() }
