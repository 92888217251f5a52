// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// fake makes a machine whose file system has these files. A file whose text
// begins with "-> " is a link.
func fake(t *testing.T, files map[string]string) *machine {
	t.Helper()
	m := &machine{root: t.TempDir(), open: openDevice}
	for name, text := range files {
		add(t, m, name, text)
	}
	return m
}

// add gives the machine a file.
func add(t *testing.T, m *machine, name, text string) {
	t.Helper()
	path := m.path(name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	if target, ok := cutLink(text); ok {
		require.NoError(t, os.Symlink(target, path))
		return
	}
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func cutLink(text string) (target string, ok bool) {
	const mark = "-> "
	if len(text) > len(mark) && text[:len(mark)] == mark {
		return text[len(mark):], true
	}
	return "", false
}

// inside are the files of a machine in a container, outside those of one that
// is not, and pod those of one that Kubernetes has started.
var (
	inside  = map[string]string{"proc/self/ns/pid": "-> pid:[4026532201]"}
	outside = map[string]string{"proc/self/ns/pid": "-> pid:[4026531836]"}
	// A pod may see the host's processes.
	pod = map[string]string{"proc/self/ns/pid": "-> pid:[4026531836]", "proc/self/environ": "A=1\x00KUBERNETES_SERVICE_HOST=192.0.2.9\x00B=\x00"}
	// otherNetwork is a machine's network namespace that is not the first.
	otherNetwork = with(outside, map[string]string{"proc/self/ns/net": "-> net:[4026532175]", "proc/1/ns/net": "-> net:[4026531840]"})
)

// with returns the files of all.
func with(files ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, some := range files {
		maps.Copy(all, some)
	}
	return all
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// roce is a device with a port on an interface.
func roce(name, netDev string, state link.State, gids ...string) ibverbs.DeviceInfo {
	p := ibverbs.PortInfo{
		Port: 1, NetDev: netDev,
		PortAttr: ibverbs.PortAttr{State: state, LinkLayer: link.Ethernet, PhysicalState: link.PhysDisabled},
	}
	for i, text := range gids {
		p.GIDs = append(p.GIDs, ibverbs.GIDEntry{
			Port: 1, Index: i, GID: ibverbs.GIDFromAddr(netip.MustParseAddr(text)), Type: ibverbs.GIDTypeRoCEv2, NetDev: netDev,
		})
	}
	return ibverbs.DeviceInfo{Device: ibverbs.DeviceEntry{Name: name}, Ports: []ibverbs.PortInfo{p}}
}

// fabric is a device with a port of InfiniBand.
func fabric(state link.State, physical link.PhysState) ibverbs.DeviceInfo {
	d := roce("mlx5_0", "ib0", state)
	d.Ports[0].LinkLayer, d.Ports[0].PhysicalState = link.InfiniBand, physical
	return d
}
