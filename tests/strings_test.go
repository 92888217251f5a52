// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// The golden file has every value in this range.
const first, last = -2, 64

// texts are the String methods that print what a C function returns.
var texts = map[string]func(v int32) fmt.Stringer{
	"rdma_event_str":     func(v int32) fmt.Stringer { return librdmacm.CmEventType(v) },
	"ibv_wc_status_str":  func(v int32) fmt.Stringer { return libibverbs.WcStatus(v) },
	"ibv_event_type_str": func(v int32) fmt.Stringer { return libibverbs.EventType(v) },
	"ibv_node_type_str":  func(v int32) fmt.Stringer { return libibverbs.NodeType(v) },
	"ibv_port_state_str": func(v int32) fmt.Stringer { return libibverbs.PortState(v) },
}

// goldenStrings reads what the C functions of the newest rdma-core returned:
// function, then value, then text.
func goldenStrings(t *testing.T) map[string]map[int32]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("golden", "strings.txt"))
	require.NoError(t, err)
	all := map[string]map[int32]string{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		function, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		require.True(t, ok, line)
		number, text, ok := strings.Cut(rest, " ")
		require.True(t, ok, line)
		value, err := strconv.ParseInt(number, 10, 32)
		require.NoError(t, err)
		if all[function] == nil {
			all[function] = map[int32]string{}
		}
		all[function][int32(value)] = text
	}
	return all
}

// others are the texts of the C functions for values that they do not know.
var others = map[string]string{
	"rdma_event_str":     "UNKNOWN EVENT",
	"ibv_wc_status_str":  "unknown",
	"ibv_event_type_str": "unknown",
	"ibv_node_type_str":  "unknown",
	"ibv_port_state_str": "unknown",
}

// wantText returns what String prints of a value for which C has the text.
func wantText(function, text string, v int32) string {
	if text != others[function] {
		return text
	}
	if function == "ibv_node_type_str" {
		return fmt.Sprintf("%s (%d)", text, v)
	}
	return fmt.Sprintf("%s (%d)", text, uint32(v))
}

// TestStrings proves that the String methods say what C says, and add the
// number where C does not know the value.
func TestStrings(t *testing.T) {
	golden := goldenStrings(t)
	require.Len(t, golden, len(texts))
	for function, text := range texts {
		t.Run(function, func(t *testing.T) {
			require.Len(t, golden[function], last-first+1)
			for v := int32(first); v <= last; v++ {
				require.Equal(t, wantText(function, golden[function][v], v), text(v).String(), "%s(%d)", function, v)
			}
		})
	}
}
