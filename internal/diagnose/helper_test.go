package diagnose

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// fake makes a machine whose file system has these files. A file whose text
// begins with "-> " is a link.
func fake(t *testing.T, files map[string]string) *machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, ok := cutLink(text); ok {
			require.NoError(t, os.Symlink(target, path))
			continue
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return &machine{root: root, open: openDevice}
}

func cutLink(text string) (target string, ok bool) {
	const mark = "-> "
	if len(text) > len(mark) && text[:len(mark)] == mark {
		return text[len(mark):], true
	}
	return "", false
}

// inside are the files of a machine in a container, outside those of one that
// is not.
var (
	inside  = map[string]string{"proc/self/ns/pid": "-> pid:[4026532201]"}
	outside = map[string]string{"proc/self/ns/pid": "-> pid:[4026531836]"}
)

// with returns the files of both.
func with(base, more map[string]string) map[string]string {
	all := map[string]string{}
	for name, text := range base {
		all[name] = text
	}
	for name, text := range more {
		all[name] = text
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
func roce(name, netDev string, state ibverbs.PortState, gids ...string) ibverbs.DeviceInfo {
	p := ibverbs.PortInfo{
		Port: 1, NetDev: netDev,
		PortAttr: ibverbs.PortAttr{State: state, LinkLayer: ibverbs.LinkEthernet, PhysicalState: ibverbs.PhysDisabled},
	}
	for i, text := range gids {
		p.GIDs = append(p.GIDs, ibverbs.GIDEntry{
			Port: 1, Index: i, GID: ibverbs.GIDFromAddr(netip.MustParseAddr(text)), Type: ibverbs.GIDTypeRoCEv2, NetDev: netDev,
		})
	}
	return ibverbs.DeviceInfo{Device: ibverbs.Device{Name: name}, Ports: []ibverbs.PortInfo{p}}
}

// fabric is a device with a port of InfiniBand.
func fabric(state ibverbs.PortState, physical ibverbs.PhysState) ibverbs.DeviceInfo {
	d := roce("mlx5_0", "ib0", state)
	d.Ports[0].LinkLayer, d.Ports[0].PhysicalState = ibverbs.LinkInfiniBand, physical
	return d
}
