// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// fake returns a machine with files, in which nothing below closed is
// accessible.
func fake(files map[string]string, closed ...string) machine {
	all := fstest.MapFS{}
	for name, text := range files {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return machine{all, func(name string) bool {
		for _, c := range closed {
			if c == name {
				return false
			}
		}
		return true
	}, func() (open, most int, ok bool) { return 3, 1024, true }}
}

// with returns the machine with so many open files.
func (m machine) with(open, most int, ok bool) machine {
	m.descriptors = func() (int, int, bool) { return open, most, ok }
	return m
}

const (
	procMaps = "00001000-00002000 r--p 00000000 00:00 0 \n00002000-00004000 rw-p 00000000 00:00 0 [heap]\n00004000-00005000 rw-p 00000000 00:00 0\n" +
		"00006000-00007000 rw-s 00000000 08:01 7 /var/lib/file\n00008000-00009000 rw-s 00000000 00:05 8 /dev/nvidia0\n" +
		"0000a000-0000b000 rw-s 00000000 00:01 9 /dev/zero \n0000c000-0000d000 ---p 00000000 00:00 0 \n" +
		"0000e000-0000f000 rw-s 00000000 00:0b 12 /dmabuf:\n"
	procLimits = "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         65536                65536                bytes     \n"
	procStatus = "Name:\tx\nVmLck:\t     900 kB\nVmPin:\t      48 kB\nCapEff:\t0000000000000000\n"
)

// A hint is given only if what it says is so.
func TestLooks(t *testing.T) {
	device := map[string]string{
		"sys/class/infiniband/rxe0": "", "sys/class/infiniband_verbs/uverbs0": "", "dev/infiniband/uverbs0": "", "dev/infiniband/rdma_cm": "", "dev/infiniband/umad0": "",
	}
	with := func(more map[string]string) map[string]string {
		all := map[string]string{}
		for _, files := range []map[string]string{device, more} {
			for name, text := range files {
				all[name] = text
			}
		}
		return all
	}
	group := func(most, used string) map[string]string {
		return with(map[string]string{
			"proc/self/cgroup": "0::/pods/one\n", "sys/fs/cgroup/pods/rdma.max": most, "sys/fs/cgroup/pods/rdma.current": used,
			"sys/fs/cgroup/pods/one/rdma.max": "rxe0 hca_handle=max hca_object=max\n", "sys/fs/cgroup/pods/one/rdma.current": used,
		})
	}
	full := group("rxe0 hca_handle=2 hca_object=9\n", "rxe0 hca_handle=2 hca_object=9\n")
	room := group("rxe0 hca_handle=2 hca_object=9\n", "rxe0 hca_handle=1 hca_object=8\n")
	for name, tt := range map[string]struct {
		m    machine
		look func(machine) string
		want string // begins so
	}{
		"no module":                      {fake(nil), machine.module, noModule},
		"module":                         {fake(device), machine.module, ""},
		"no device":                      {fake(nil), machine.device, noDevice},
		"device":                         {fake(device), machine.device, ""},
		"device without access":          {fake(device, "dev/infiniband/uverbs0"), machine.device, noAccess},
		"no folder":                      {fake(nil), machine.access, noAccess},
		"no access to rdma_cm":           {fake(device, "dev/infiniband/rdma_cm"), machine.access, noAccess},
		"no access to what is of no use": {fake(device, "dev/infiniband/umad0"), machine.access, ""},
		"group is full":                  {fake(full), machine.access, "the control group /pods allows 2 of hca_handle on rxe0, and all are in use"},
		"group has room":                 {fake(room), machine.access, ""},
		"group is full of objects":       {fake(full), func(m machine) string { return m.group("rxe0", "hca_object") }, "the control group /pods allows 9 of hca_object on rxe0"},
		"group of another device":        {fake(full), func(m machine) string { return m.group("rxe1", "hca_object") }, ""},
		"groups of version 1":            {fake(with(map[string]string{"proc/self/cgroup": "3:rdma:/x\n"})), machine.handles, ""},
		"broken groups":                  {fake(group("rxe0 hca_handle=\n\nhca_handle\n", "hca_handle=x")), machine.handles, ""},
		"all files are open":             {fake(nil).with(1024, 1024, true), machine.module, "this process has 1024 of at most 1024 files open"},
		"files are open, no device seen": {fake(nil).with(1024, 1024, true), machine.device, "this process has 1024 of at most 1024 files open"},
		"files are open, none accessed":  {fake(nil).with(1024, 1024, true), machine.access, "this process has 1024 of at most 1024 files open"},
		"a call has closed some":         {fake(device).with(1008, 1024, true), machine.openFiles, "this process has 1008 of at most 1024 files open; see ulimit -n"},
		"more files can be opened":       {fake(device).with(1007, 1024, true), machine.openFiles, ""},
		"no files are known":             {fake(device).with(0, 0, false), machine.openFiles, ""},
		"few files":                      {fake(device).with(3, 8, true), machine.openFiles, "this process has 3 of at most 8 files open"},
		"old kernel":                     {fake(map[string]string{"proc/sys/kernel/osrelease": "5.11.0-1\n"}), machine.dmabuf, oldKernel},
		"new kernel":                     {fake(map[string]string{"proc/sys/kernel/osrelease": "6.1.0-1\n"}), machine.dmabuf, noDMABuf},
		"unknown kernel":                 {fake(map[string]string{"proc/sys/kernel/osrelease": "x"}), machine.dmabuf, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.look(tt.m)
			if tt.want == "" {
				require.Empty(t, got)
			}
			require.True(t, strings.HasPrefix(got, tt.want), got)
		})
	}
}

func TestLookAtLockedMemory(t *testing.T) {
	unlimited := strings.Replace(procLimits, "65536 ", "unlimited ", 1)
	root := strings.Replace(procStatus, "0000000000000000", "000001ffffffffff", 1)
	for name, tt := range map[string]struct {
		limits, status string
		more           int64
		want           bool
	}{
		"fits":            {procLimits, procStatus, 16 << 10, false},
		"too much":        {procLimits, procStatus, 16<<10 + 1, true},
		"no limit":        {unlimited, procStatus, 1 << 40, false},
		"privileged":      {procLimits, root, 1 << 40, false},
		"unknown size":    {procLimits, procStatus, 0, false},
		"overflow":        {procLimits, procStatus, 1 << 62, true},
		"no limits there": {"", procStatus, 1 << 40, false},
		"cut off":         {"Max locked memory", procStatus, 1 << 40, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := fake(map[string]string{"proc/self/limits": tt.limits, "proc/self/status": tt.status}).locked(tt.more)
			require.Equal(t, tt.want, got != "", got)
			if tt.want {
				require.Equal(t, "the limit on locked memory is 64 KiB, of which 48 are in use; see ulimit -l"+Doctor, got)
			}
		})
	}
}

func TestLookAtMappings(t *testing.T) {
	m := fake(map[string]string{"proc/self/maps": procMaps})
	for name, tt := range map[string]struct {
		addr, size uint64
		writes     bool
		want       string
	}{
		"memory":                {0x2800, 0x1000, true, ""},
		"two mappings":          {0x2800, 0x2800, true, ""},
		"read-only, to read":    {0x1000, 0x1000, false, ""},
		"read-only, to write":   {0x1000, 0x1000, true, notWritable},
		"before the first":      {0, 0x1000, false, notMapped},
		"a hole":                {0x4800, 0x1000, true, notMapped},
		"behind the last":       {0xf000, 1, true, notMapped},
		"beyond the last":       {0xa800, 0x1000, true, notMapped},
		"a file":                {0x6000, 1, true, sharedFile},
		"a device's":            {0x8fff, 1, true, ofDevice},
		"shared without a file": {0xa000, 1, true, ""},
		"reserved":              {0xc000, 1, true, notReadable},
		"a DMA buffer":          {0xe000, 1, true, ofDevice},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, m.memory(tt.addr, tt.size, tt.writes))
		})
	}
	require.Empty(t, fake(nil).memory(0, 1, true))
	require.Empty(t, fake(map[string]string{"proc/self/maps": "what\n"}).memory(0, 1, true))
	require.Empty(t, fake(map[string]string{"proc/self/maps": "x-y rw-p 0 0 0 \n"}).memory(0, 1, true))
}

// What a look reads is bounded, and its text is arbitrary.
func FuzzLooks(f *testing.F) {
	f.Add(procStatus, procLimits, procMaps, "rxe0 hca_handle=2 hca_object=max\n")
	f.Add("", "Max locked memory", "0-", "=")
	f.Fuzz(func(t *testing.T, status, limits, maps, group string) {
		m := fake(map[string]string{
			"proc/self/status": status, "proc/self/limits": limits, "proc/self/maps": maps, "proc/self/cgroup": "0::" + group,
			"sys/fs/cgroup/x/rdma.max": group, "sys/fs/cgroup/x/rdma.current": group, "proc/sys/kernel/osrelease": group,
		})
		_ = m.locked(1 << 62)
		_ = m.memory(1, 1<<63, true)
		_ = m.group("", "hca_handle")
		_ = m.dmabuf()
		m.files.(fstest.MapFS)["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::/x/y/../..//x")}
		_ = m.group("rxe0", "hca_object")
	})
}

// Looks at this machine neither fail nor hang.
func TestLooksHere(t *testing.T) {
	for call := range looks {
		require.NotEmpty(t, hint(call.op, call.errno), call)
	}
	require.Empty(t, hint("ibv_reg_mr", syscall.EINVAL))
	_ = LockedHint(1 << 62)
	_ = GroupHint("rxe0")
}
