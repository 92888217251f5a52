package rdmacm_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// keep returns a handler that notes what it is given and ends nothing.
func keep() (rdmacm.Handler, chan happening) {
	note, seen := record()
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		_ = note(id, ev)
		return nil
	}, seen
}

// After a connection its ends hear when the number of their queue pair can be
// used again.
func TestTimewaitExit(t *testing.T) {
	b := newBench(t, needDevice(t))
	noteServer, server := keep()
	noteClient, client := keep()
	ln := b.listen(1, b.accepting(func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventDisconnected {
			_ = ev.ID.Disconnect() // answers the peer
		}
		return noteServer(id, ev)
	}))
	dialer := b.dial(ln, noteClient)
	for _, seen := range []chan happening{client, server} {
		await(t, seen, rdmacm.EventEstablished)
	}
	require.NoError(t, dialer.ID().Disconnect())
	for _, seen := range []chan happening{client, server} {
		await(t, seen, rdmacm.EventDisconnected)
		require.NoError(t, await(t, seen, rdmacm.EventTimewaitExit).ev.Err())
	}
}

// ownBond makes an interface of two, of which one is active, and which has the
// hardware address of that one.
func ownBond(t *testing.T) {
	t.Helper()
	run(t, "modprobe", "bonding", "max_bonds=0")
	run(t, "ip", "link", "add", ownBondDev, "type", "bond", "mode", "active-backup", "fail_over_mac", "active")
	run(t, "ip", "link", "set", ownBondDev, "addrgenmode", "none")
	for _, names := range [][2]string{{ownNetDev, "rdma10"}, {ownSpareDev, "rdma12"}} {
		run(t, "ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
		for _, name := range names {
			run(t, "ip", "link", "set", name, "addrgenmode", "none")
		}
		run(t, "ip", "link", "set", names[0], "master", ownBondDev)
		run(t, "ip", "link", "set", names[0], "up")
		run(t, "ip", "link", "set", names[1], "up")
	}
	run(t, "ip", "address", "add", ownPrefix, "dev", ownBondDev)
	run(t, "ip", "link", "set", ownBondDev, "up")
	run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", ownNetDev)
}

// When another of several interfaces takes over, whoever uses their common
// address hears of it. Connections may not outlive that; new ones are made.
func TestAddressChanges(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownBond(t)
	address := netip.MustParseAddrPort(ownDevice(t, ownBondDev))
	t.Run("in use", func(t *testing.T) {
		b := newBench(t, testdevice.Device{Name: ownName, IPv4: address.Addr()})
		note, seen := keep()
		ln := b.listen(1, b.accepting(note))
		dialer := b.dial(ln, note)
		for range 2 {
			await(t, seen, rdmacm.EventEstablished)
		}
		run(t, "ip", "link", "set", ownBondDev, "type", "bond", "active_slave", ownSpareDev)
		for {
			changed := await(t, seen, rdmacm.EventAddrChange)
			var event *rdmacm.EventError
			require.ErrorAs(t, changed.ev.Err(), &event)
			if changed.id == dialer {
				break
			}
		}
		require.NoError(t, dialer.Err())
		soon(t, "a new connection", func() bool {
			again := b.dial(ln, note)
			for {
				h := take(t, seen, "what has come of it")
				if h.id == again && (h.ev.Type == rdmacm.EventEstablished || h.ev.Err() != nil) {
					return h.ev.Err() == nil
				}
			}
		})
	})
	removal := start(t, "rdma", "link", "delete", ownName)
	soon(t, "the device is not listed any more", func() bool { return !isListed(t, ownName) })
	for range 2 { // the first one lets it go, the second one finds librdmacm's part of that done
		require.Nil(t, find(t, ownName))
	}
	require.NoError(t, take(t, removal, "the end of the removal"))
}
