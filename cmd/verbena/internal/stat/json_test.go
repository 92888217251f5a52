// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// The fields of JSON are those of docs/guide/programs.md.
func TestJSONFields(t *testing.T) {
	var stdout bytes.Buffer
	require.NoError(t, program.Output{Stdout: &stdout}.JSON(report{Devices: one(packets("sent_pkts", 100))}))
	golden.Compare(t, "testdata/counters.json", stdout.String())
	stdout.Reset()
	source := &fake{readings: [][]device{one()}, objects: objects()}
	require.NoError(t, (&options{asJSON: true}).showResources(t.Context(), program.Output{Stdout: &stdout}, source))
	golden.Compare(t, "testdata/resources.json", stdout.String())
}
