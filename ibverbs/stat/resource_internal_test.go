// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netlink"
	"github.com/verbena-go/verbena/internal/nldev"
)

func u32(v uint32) [][]byte { return [][]byte{binary.NativeEndian.AppendUint32(nil, v)} }

func u64(v uint64) [][]byte { return [][]byte{binary.NativeEndian.AppendUint64(nil, v)} }

// socket returns a struct sockaddr_storage.
func socket(family uint16, port uint16, rest ...byte) [][]byte {
	b := binary.NativeEndian.AppendUint16(nil, family)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, rest...)
	return [][]byte{append(b, make([]byte, 128-len(b))...)}
}

func TestObjects(t *testing.T) {
	self := uint32(os.Getpid())
	me, kernel := Owner{PID: int(self), Program: "me", Thread: 5}, Owner{Kernel: "ib_core"}
	names := processes{int(self): me}
	byKernel := [][]byte{[]byte("ib_core\x00")}
	two := uint32(2)
	zero := uint32(0)

	q, number := names.queuePair("d", netlink.Attributes{
		nldev.AttrLocalQPN: u32(17), nldev.AttrRemoteQPN: u32(18), nldev.AttrType: {{2}}, nldev.AttrState: {{3}},
		nldev.AttrPort: u32(1), nldev.AttrPDN: u32(2), nldev.AttrPID: u32(self),
	})
	require.Equal(t, QueuePair{"d", 1, 17, 18, "RC", "RTS", &two, me}, q)
	require.Equal(t, uint32(17), number)
	q, _ = names.queuePair("d", netlink.Attributes{
		nldev.AttrLocalQPN: u32(1), nldev.AttrType: {{1}}, nldev.AttrState: {{77}}, nldev.AttrKernelName: byKernel,
	})
	require.Equal(t, QueuePair{"d", 0, 1, 0, "GSI", "77", nil, kernel}, q)

	c, _ := names.completionQueue("d", netlink.Attributes{
		nldev.AttrCQN: u32(0), nldev.AttrCQE: u32(63), nldev.AttrUses: u64(2), nldev.AttrPollContext: {{2}}, nldev.AttrKernelName: byKernel,
	})
	require.Equal(t, CompletionQueue{"d", &zero, 63, 2, "WORKQUEUE", kernel}, c)
	c, _ = names.completionQueue("d", netlink.Attributes{nldev.AttrCQE: u32(7), nldev.AttrPollContext: {{0}}, nldev.AttrPID: u32(self)})
	require.Equal(t, CompletionQueue{"d", nil, 7, 0, "", me}, c)

	m, _ := names.memoryRegion("d", netlink.Attributes{
		nldev.AttrMRN: u32(2), nldev.AttrLength: u64(1 << 40), nldev.AttrRKey: u32(0), nldev.AttrPID: u32(self),
	})
	require.Equal(t, MemoryRegion{"d", &two, 1 << 40, nil, &zero, nil, me}, m)

	pd, _ := names.protectionDomain("d", netlink.Attributes{nldev.AttrPDN: u32(2), nldev.AttrUses: u64(5), nldev.AttrPID: u32(self)})
	require.Equal(t, ProtectionDomain{"d", &two, 5, me}, pd)

	id, _ := names.connectionID("d", netlink.Attributes{
		nldev.AttrCMIDN: u32(2), nldev.AttrState: {{5}}, nldev.AttrType: {{2}}, nldev.AttrPortSpace: u32(0x106), nldev.AttrLocalQPN: u32(17), nldev.AttrPort: u32(1),
		nldev.AttrSource: socket(2, 7471, 192, 0, 2, 1), nldev.AttrDestination: socket(10, 80, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9),
		nldev.AttrPID: u32(self),
	})
	require.Equal(t, ConnectionID{
		"d", 1, &two, 17, "RC", "CONNECT", "TCP", netip.MustParseAddrPort("192.0.2.1:7471"), netip.MustParseAddrPort("[fe80::9]:80"), me,
	}, id)
	// One that is bound to nothing, of a kernel with states of its own.
	id, _ = names.connectionID("d", netlink.Attributes{nldev.AttrState: {{99}}, nldev.AttrPortSpace: u32(0x999), nldev.AttrSource: socket(27, 1), nldev.AttrPID: u32(self)})
	require.Equal(t, ConnectionID{Device: "d", State: "99", PortSpace: "0x999", Owner: me}, id)
	b, err := json.Marshal(id)
	require.NoError(t, err)
	require.NotContains(t, string(b), "source")
}

func TestAddress(t *testing.T) {
	scoped := make([]byte, 24)
	scoped[4], scoped[5], scoped[19] = 0xfe, 0x80, 1
	binary.NativeEndian.PutUint32(scoped[20:], 3)
	for name, tt := range map[string]struct {
		raw  []byte
		want string
	}{
		"IPv4":             {socket(2, 1, 10, 0, 0, 1)[0], "10.0.0.1:1"},
		"with a zone":      {socket(10, 2, scoped...)[0], "[fe80::1%3]:2"},
		"short":            {[]byte{2, 0, 0}, "invalid AddrPort"},
		"short IPv6":       {socket(10, 2)[0][:27], "invalid AddrPort"},
		"another family":   {socket(27, 2)[0], "invalid AddrPort"},
		"nothing at all":   {nil, "invalid AddrPort"},
		"any port of IPv4": {socket(2, 0)[0], "0.0.0.0:0"},
	} {
		require.Equal(t, tt.want, address(tt.raw).String(), name)
	}
}

// The kernel tells threads. One that has ended has no process.
func TestOwner(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Skip(err)
	}
	self := Owner{PID: os.Getpid(), Program: strings.TrimSpace(string(comm))}
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	p := processes{}
	for _, thread := range threads {
		self.Thread, err = strconv.Atoi(thread.Name())
		require.NoError(t, err)
		require.Equal(t, self, p.owner(netlink.Attributes{nldev.AttrPID: u32(uint32(self.Thread))}))
		require.Equal(t, self, p.owner(netlink.Attributes{nldev.AttrPID: u32(uint32(self.Thread))}), "looked up before")
	}
	require.Equal(t, Owner{PID: 1 << 30, Thread: 1 << 30}, p.owner(netlink.Attributes{nldev.AttrPID: u32(1 << 30)}))
	require.Equal(t, Owner{}, p.owner(netlink.Attributes{}), "the thread has ended")
}
