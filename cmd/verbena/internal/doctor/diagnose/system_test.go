// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

func TestLibraries(t *testing.T) {
	const maps = "7f00-7f01 r-xp 0 0:1 9 /usr/lib/"
	for name, tt := range map[string]struct {
		maps string
		want Finding
	}{
		"same": {
			maps + "libibverbs.so.1.14.44.0\n" + maps + "libc.so.6\n" + maps + "librdmacm.so.1.3.44.0\n",
			Finding{Status: OK, Found: "libibverbs and librdmacm from rdma-core 44.0"},
		},
		"mixed": {maps + "libibverbs.so.1.14.65.0\n" + maps + "librdmacm.so.1.3.44.0", Finding{
			Status: Warn, Found: "libibverbs is from rdma-core 65.0, librdmacm from 44.0", Remedy: "install the same version of both",
		}},
		"unknown": {maps + "libibverbs.so.1\n", Finding{Status: OK, Found: "libibverbs and librdmacm, whose files do not show the version"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, fake(t, map[string]string{"proc/self/maps": tt.maps}).versions())
		})
	}
}

func TestLibraryMissing(t *testing.T) {
	missing := &ibverbs.LibraryError{Library: "libx.so.1", Reason: "no such file"}
	for release, command := range map[string]string{
		"ID=debian\n": "apt-get install -y libibverbs1 librdmacm1 ibverbs-providers",
		"NAME=x\nID=mint\nID_LIKE=\"ubuntu foo\"": "apt-get install -y libibverbs1 librdmacm1 ibverbs-providers",
		"ID=\"rocky\"\nID_LIKE='rhel centos'\n":   "dnf install -y libibverbs librdmacm",
		"ID=other":                                "",
		"":                                        "",
	} {
		f := fake(t, map[string]string{"etc/os-release": release}).libraryMissing(missing)
		require.Equal(t, Fail, f.Status)
		require.Equal(t, "cannot load libx.so.1: no such file", f.Found)
		if command == "" {
			require.Empty(t, f.Commands)
			require.Contains(t, f.Remedy, "install rdma-core's libraries")
			continue
		}
		require.Equal(t, []string{command}, f.Commands)
	}
}

func TestModules(t *testing.T) {
	kernel := map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "proc/modules": ""}
	rigid := map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n"}
	without := map[string]string{"boot/config-6.1.0": "CONFIG_MODULES=y\n# CONFIG_INFINIBAND is not set\n"}
	built := map[string]string{"boot/config-6.1.0": "CONFIG_MODULES=y\nCONFIG_INFINIBAND=m\nCONFIG_INFINIBAND_USER_ACCESS=m\n"}
	const other = " another kernel, or use a virtual machine with one: those of Debian's linux-image-amd64, but not its cloud kernels, " +
		"and those of Ubuntu with linux-modules-extra have RDMA and Soft-RoCE, a software device that needs no card"
	dep := with(kernel, map[string]string{"lib/modules/6.1.0/modules.dep": "kernel/ib_uverbs.ko.xz: a\nkernel/rdma_ucm.ko: b"})
	signs := map[string]string{"sys/class/infiniband_verbs/abi_version": "6", "sys/class/misc/rdma_cm/dev": "10:124"}
	for name, tt := range map[string]struct {
		files map[string]string
		want  Finding
	}{
		"loaded": {signs, Finding{Status: OK, Found: "ib_uverbs and rdma_ucm are loaded"}},
		"none that can be loaded": {rigid, Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 can load no modules", Remedy: "boot" + other,
		}},
		"none that can be loaded, in a pod": {with(rigid, pod), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 can load no modules", Remedy: "use a node with" + other,
		}},
		"built without": {with(kernel, without), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 was built without RDMA", Remedy: "boot" + other,
		}},
		"built without, in a container": {with(with(kernel, inside), map[string]string{"proc/config.gz": zipped("CONFIG_MODULES=y\n")}), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 was built without RDMA", Remedy: "have the host boot" + other,
		}},
		"built with, but not installed": {with(kernel, built, map[string]string{"lib/modules/6.1.0/modules.dep": "kernel/other.ko:"}), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 has no such modules here",
			Remedy: "install the rest of the kernel's modules (on Ubuntu linux-modules-extra-6.1.0), then: modprobe -a ib_uverbs rdma_ucm",
		}},
		"configuration that cannot be read": {with(kernel, map[string]string{"proc/config.gz": "no gzip"}), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded", Remedy: "on the host: modprobe -a ib_uverbs rdma_ucm",
		}},
		"in a pod": {with(kernel, pod), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded", Remedy: "on the node: modprobe -a ib_uverbs rdma_ucm",
		}},
		"none": {dep, Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded", Commands: []string{"modprobe -a ib_uverbs rdma_ucm"},
		}},
		"one": {with(dep, map[string]string{"sys/class/infiniband_verbs/abi_version": "6"}), Finding{
			Status: Fail, Found: "rdma_ucm not loaded", Commands: []string{"modprobe -a rdma_ucm"},
		}},
		"a kernel without": {with(kernel, map[string]string{"lib/modules/6.1.0/modules.dep": "kernel/other.ko:"}), Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded, and the kernel 6.1.0 has no such modules here",
			Remedy: "install the rest of the kernel's modules (on Ubuntu linux-modules-extra-6.1.0), then: modprobe -a ib_uverbs rdma_ucm",
		}},
		"no list": {kernel, Finding{
			Status: Fail, Found: "ib_uverbs and rdma_ucm not loaded", Remedy: "on the host: modprobe -a ib_uverbs rdma_ucm",
		}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, modules(t.Context(), fake(t, tt.files))) })
	}
}

// zipped returns a text as gzip compresses it.
func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text) // a buffer takes everything
	_ = z.Close()
	return b.String()
}

func TestDeviceFiles(t *testing.T) {
	kernel := map[string]string{
		"sys/class/misc/rdma_cm/dev": "10:124\n", "sys/class/infiniband_verbs/uverbs0/dev": "231:192\n", "sys/class/infiniband_verbs/abi_version": "6",
		"sys/class/infiniband_verbs/uverbs0/ibdev": "rxe0\n", "sys/class/infiniband/rxe0/node_guid": "",
		// Of a device of another network namespace the file is no concern.
		"sys/class/infiniband_verbs/uverbs1/dev": "231:193\n", "sys/class/infiniband_verbs/uverbs1/ibdev": "rxe1\n",
	}
	both := map[string]string{"dev/infiniband/rdma_cm": "", "dev/infiniband/uverbs0": ""}
	for name, tt := range map[string]struct {
		files   map[string]string
		refused string // of which no file can be opened
		want    Finding
	}{
		"all": {files: with(outside, both), want: Finding{Status: OK, Found: "rdma_cm, uverbs0 in /dev/infiniband can be opened"}},
		"missing": {files: outside, want: Finding{
			Status: Fail, Found: "no rdma_cm, uverbs0 in /dev/infiniband",
			Remedy: "find out why udev has not created them; until then, create them by hand",
			Commands: []string{
				"mkdir -p /dev/infiniband", "mknod -m 666 /dev/infiniband/rdma_cm c 10 124", "mknod -m 666 /dev/infiniband/uverbs0 c 231 192",
			},
		}},
		"missing in a container": {files: inside, want: Finding{
			Status: Fail, Found: "no rdma_cm, uverbs0 in /dev/infiniband", Remedy: passFiles,
		}},
		"missing in a pod": {files: pod, want: Finding{
			Status: Fail, Found: "no rdma_cm, uverbs0 in /dev/infiniband", Remedy: passFilesToPod,
		}},
		"refused": {files: with(outside, both), refused: "uverbs0", want: Finding{
			Status: Fail, Found: "no permission to open uverbs0 in /dev/infiniband", Commands: []string{"chmod 666 /dev/infiniband/uverbs0"},
			Remedy: "the udev rules of the package rdma-core do this permanently; until then, do it by hand",
		}},
		"refused in a container": {files: with(inside, both), refused: "infiniband", want: Finding{
			Status: Fail, Found: "no permission to open rdma_cm, uverbs0 in /dev/infiniband", Remedy: passFiles,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, with(kernel, tt.files))
			if tt.refused != "" {
				m.open = func(path string) error {
					if strings.Contains(path, tt.refused) {
						return fs.ErrPermission
					}
					return nil
				}
			}
			require.Equal(t, tt.want, deviceFiles(t.Context(), m))
		})
	}
}

func TestLockedMemory(t *testing.T) {
	const (
		head   = "Limit                     Soft Limit           Hard Limit           Units     \nMax processes  1 1 processes\nMax locked memory         "
		user   = "Name:\tx\nCapEff:\t0000000000000000\n"
		root   = "Name:\tx\nCapEff:\t000001ffffffffff\n"
		always = "put \"* - memlock unlimited\" into /etc/security/limits.d/rdma.conf and log in again; for a service: LimitMEMLOCK=infinity"
		raise  = "raise the limit in the shell that starts the program; for a service: LimitMEMLOCK=infinity"
		all    = "         0          0 4294967295\n"
	)
	command := []string{"ulimit -l $(ulimit -H -l)"}
	for name, tt := range map[string]struct {
		limit, status, users string
		base                 map[string]string
		want                 Finding
	}{
		"none":       {"unlimited unlimited bytes", user, all, outside, Finding{Status: OK, Found: "no limit"}},
		"root":       {"65536 65536 bytes", root, all, outside, Finding{Status: OK, Found: "the limit of 64 KiB does not apply to this user"}},
		"much":       {"1073741824 1073741824 bytes", user, all, outside, Finding{Status: OK, Found: "up to 1024 MiB"}},
		"unreadable": {"x y", user, all, outside, Finding{Status: Skipped, Found: "not checked: the limit cannot be read"}},
		"little":     {"8388608 8388608 bytes", user, all, outside, Finding{Status: Warn, Found: "only 8 MiB may be locked: large buffers cannot be registered", Remedy: always}},
		"too little": {"65536 65536 bytes", user, all, outside, Finding{Status: Fail, Found: "only 64 KiB may be locked: buffers and queues do not fit", Remedy: always}},
		"can be raised": {"65536 unlimited bytes", user, all, outside, Finding{
			Status: Fail, Found: "only 64 KiB may be locked: buffers and queues do not fit", Remedy: raise, Commands: command,
		}},
		"in a container": {"65536 65536 bytes", user, all, inside, Finding{
			Status: Fail, Found: "only 64 KiB may be locked: buffers and queues do not fit",
			Remedy: "start the container without the limit: docker run --ulimit memlock=-1",
		}},
		"in a pod": {"65536 65536 bytes", user, all, pod, Finding{
			Status: Fail, Found: "only 64 KiB may be locked: buffers and queues do not fit",
			Remedy: "give the container IPC_LOCK, under securityContext, capabilities, add, or the node's container runtime LimitMEMLOCK=infinity",
		}},
		"root of a namespace": {"65536 65536 bytes", root, "         0     100000      65536", outside, Finding{
			Status: Fail, Found: "only 64 KiB may be locked: buffers and queues do not fit", Remedy: always,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, with(tt.base, map[string]string{
				"proc/self/limits": head + tt.limit + "\n", "proc/self/status": tt.status, "proc/self/uid_map": tt.users,
			}))
			require.Equal(t, tt.want, lockedMemory(t.Context(), m))
		})
	}
}

func TestContainer(t *testing.T) {
	require.Equal(t, Finding{Status: OK, Found: "not in one"}, container(t.Context(), fake(t, outside)))
	require.Contains(t, container(t.Context(), fake(t, inside)).Found, "in a container")
	require.Contains(t, container(t.Context(), fake(t, pod)).Found, "in a pod of Kubernetes")
	require.Equal(t, Finding{Status: OK, Found: "not in one"}, container(t.Context(), fake(t, nil)), "where this cannot be told")
	require.Equal(t, Finding{Status: OK, Found: "not in one, but in a different network namespace from the machine's first process"},
		container(t.Context(), fake(t, otherNetwork)))
	require.NotContains(t, container(t.Context(), fake(t, with(otherNetwork, inside))).Found, "network")
}

func TestLimits(t *testing.T) {
	group := map[string]string{"proc/self/cgroup": "0::/system/x\n"}
	max := func(folder, text string) map[string]string {
		return with(group, map[string]string{"sys/fs/cgroup/" + folder + "/rdma.max": text})
	}
	scarce := func(group, values string) Finding {
		return Finding{
			Status: Fail, Found: "the control group " + group + " allows rxe0 only " + values,
			Remedy:   "raise the limit in the settings of the service or container",
			Commands: []string{"echo rxe0 hca_handle=max hca_object=max >/sys/fs/cgroup" + group + "/rdma.max"},
		}
	}
	opened := map[string]string{"proc/self/fd/0": "", "proc/self/fd/1": "", "proc/self/fd/2": ""}
	room := Finding{Status: OK, Found: "the control groups leave room"}
	for name, tt := range map[string]struct {
		files map[string]string
		want  Finding
	}{
		"no file": {group, room},
		"few files": {with(group, opened, map[string]string{"proc/self/limits": "Max open files            8          8          files\n"}), Finding{
			Status: Fail, Found: "only 8 files may be open at a time", Remedy: moreFiles,
		}},
		"few files in a container": {with(inside, opened, map[string]string{"proc/self/limits": "Max open files            8          8          files\n"}), Finding{
			Status: Fail, Found: "only 8 files may be open at a time", Remedy: "start the container with more: docker run --ulimit nofile=65536",
		}},
		"enough files":   {with(group, opened, map[string]string{"proc/self/limits": "Max open files            9          9          files\n"}), room},
		"much":           {max("system/x", "rxe0 hca_handle=max hca_object=2000\n"), room},
		"few handles":    {max("system/x", "mlx5_0 hca_handle=max hca_object=max\nrxe0 hca_handle=1 hca_object=max\n"), scarce("/system/x", "hca_handle=1 hca_object=max")},
		"no objects":     {max("system/x", "rxe0 hca_handle=9 hca_object=0\n"), scarce("/system/x", "hca_handle=9 hca_object=0")},
		"of a parent":    {max("system", "rxe0 hca_handle=max hca_object=0\n"), scarce("/system", "hca_handle=max hca_object=0")},
		"of version 1":   {map[string]string{"proc/self/cgroup": "3:rdma:/x\n"}, Finding{Status: Skipped, Found: "not checked: the machine uses control groups version 1"}},
		"nonsense there": {max("system/x", "rxe0\nrxe0 =\n hca_handle\n"), room},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, limits(t.Context(), fake(t, tt.files))) })
	}
}
