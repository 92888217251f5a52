// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package tests

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/dl"
)

// liveStrings call the C functions.
var liveStrings = map[string]func(v int32) (string, error){
	"rdma_event_str":     func(v int32) (string, error) { return librdmacm.EventStr(librdmacm.CmEventType(v)) },
	"ibv_wc_status_str":  func(v int32) (string, error) { return libibverbs.WcStatusStr(libibverbs.WcStatus(v)) },
	"ibv_event_type_str": func(v int32) (string, error) { return libibverbs.EventTypeStr(libibverbs.EventType(v)) },
	"ibv_node_type_str":  func(v int32) (string, error) { return libibverbs.NodeTypeStr(libibverbs.NodeType(v)) },
	"ibv_port_state_str": func(v int32) (string, error) { return libibverbs.PortStateStr(libibverbs.PortState(v)) },
}

// later are the values that came after rdma-core 33, with a function that came
// in the same release: an installed library without the function does not know
// the value and gives its text for unknown ones.
var later = []struct {
	function string
	value    int32
	unknown  string
	library  string
	symbol   string
}{
	{"rdma_event_str", int32(librdmacm.RDMA_CM_EVENT_ADDRINFO_RESOLVED), "UNKNOWN EVENT", "librdmacm.so.1", "rdma_query_addrinfo"}, // 60
	{"rdma_event_str", int32(librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR), "UNKNOWN EVENT", "librdmacm.so.1", "rdma_query_addrinfo"},
	{"ibv_event_type_str", int32(libibverbs.IBV_EVENT_DEVICE_SPEED_CHANGE), "unknown", "libibverbs.so.1", "ibv_query_port_speed"}, // 62
}

// hasSymbol looks into an installed library.
func hasSymbol(t *testing.T, library, symbol string) bool {
	t.Helper()
	found := false
	l := dl.Library{Name: library, Symbols: []string{symbol}, Set: func(int, unsafe.Pointer) { found = true }}
	require.NoError(t, l.Load())
	return found
}

// TestLiveStrings compares the golden texts with the installed libraries.
func TestLiveStrings(t *testing.T) {
	golden := goldenStrings(t)
	for function, call := range liveStrings {
		t.Run(function, func(t *testing.T) {
			if _, err := call(0); errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			unknown := map[int32]string{}
			for _, l := range later {
				if l.function == function && !hasSymbol(t, l.library, l.symbol) {
					t.Logf("the installed %s is too old for value %d", l.library, l.value)
					unknown[l.value] = l.unknown
				}
			}
			for v := int32(first); v <= last; v++ {
				want, ok := unknown[v]
				if !ok {
					want = golden[function][v]
				}
				got, err := call(v)
				require.NoError(t, err)
				require.Equal(t, want, got, "%s(%d)", function, v)
			}
		})
	}
}
