// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		lines string
		want  Event
		ok    bool
	}{
		"added": {
			"add@/devices/virtual/infiniband/rxe9 ACTION=add DEVPATH=/devices/virtual/infiniband/rxe9 SUBSYSTEM=infiniband NAME=rxe9 SEQNUM=7",
			Event{},
			true,
		},
		"added for programs":   {"ACTION=add DEVPATH=/devices/virtual/infiniband_verbs/uverbs0 SUBSYSTEM=infiniband_verbs", Event{}, true},
		"removed":              {"ACTION=remove DEVPATH=/devices/pci0/infiniband/mlx5_0 SUBSYSTEM=infiniband", Event{"mlx5_0"}, true},
		"removed for programs": {"ACTION=remove DEVPATH=/devices/virtual/infiniband_verbs/uverbs0 SUBSYSTEM=infiniband_verbs", Event{}, true},
		"changed":              {"ACTION=change DEVPATH=/devices/virtual/infiniband/rxe9 SUBSYSTEM=infiniband", Event{}, false},
		"another's":            {"ACTION=add DEVPATH=/devices/virtual/net/eth0 SUBSYSTEM=net", Event{}, false},
		"nothing":              {"", Event{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ev, ok := parse([]byte(strings.ReplaceAll(tt.lines, " ", "\x00") + "\x00"))
			require.Equal(t, tt.want, ev)
			require.Equal(t, tt.ok, ok)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("ACTION=add\x00SUBSYSTEM=infiniband\x00DEVPATH=/a/b\x00"))
	f.Add([]byte("libudev\x00\xfe\xed\xca\xfe"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if _, ok := parse(message); ok {
			require.Contains(t, string(message), "ACTION=")
		}
	})
}
