// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// address6 gives the interface an address that it loses when it is down.
const address6 = "ip address replace 2001:db8::1/64 dev rdma0 nodad"

// ailment is something that RDMA does not work without.
type ailment struct {
	cause string   // commands that bring it about
	start []string // what the program is started with, so that it lacks something
	undo  string   // commands after the test

	check   string   // which must fail first
	found   string   // in what it says
	remedy  string   // in what it tells to do
	command []string // what it tells to run

	cure      string   // commands that do what it tells, where that is in words or cannot be done in the guest
	cureStart []string // with what the program is started then; a file is no longer hidden without
}

// hide starts a program without a file or folder, with what else is to be
// mounted in its place.
func hide(path, instead string) []string {
	return []string{"unshare", "-m", "sh", "-ec", "mount --bind " + instead + " $(readlink -f " + path + ");" + ` exec "$@"`, "sh"}
}

const libraryFolder = "/usr/lib/$(uname -m)-linux-gnu/"

// unprivileged starts a program as a user without rights, and with limits on
// locked memory.
func unprivileged(memlock string) []string {
	return []string{"prlimit", "--memlock=" + memlock, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
}

var inPod = []string{"ip", "netns", "exec", "pod"}

// sameInterface makes an interface in the network namespace pod that has the
// name and the number of the device's, which stays outside.
const sameInterface = "ip -n pod link add rdma0 index $(cat /sys/class/net/rdma0/ifindex) type dummy; " +
	"ip -n pod link set lo up; ip -n pod link set rdma0 up; ip -n pod address add 203.0.113.2/24 dev rdma0"

// netnsMode sets whether all network namespaces share devices, once the kernel
// has done with those that were deleted.
func netnsMode(mode string) string {
	return "timeout 60 sh -c 'until rdma system set netns " + mode + " 2>/dev/null; do sleep 0.1; done'"
}

var ailments = map[string]ailment{
	"no libibverbs": {
		start: hide(libraryFolder+"libibverbs.so.1", "/dev/null"),
		check: "libraries", found: "cannot load libibverbs.so.1: ",
		command: []string{"apt-get install -y libibverbs1 librdmacm1 ibverbs-providers"}, cure: "true",
	},
	"no librdmacm": {
		start: hide(libraryFolder+"librdmacm.so.1", "/dev/null"),
		check: "libraries", found: "cannot load librdmacm.so.1: ",
		command: []string{"apt-get install -y libibverbs1 librdmacm1 ibverbs-providers"}, cure: "true",
	},
	"no provider": {
		start: hide("/etc/libibverbs.d", "/mnt"),
		check: "devices", found: "libibverbs has no provider for rxe0",
		command: []string{"apt-get install -y ibverbs-providers"}, cure: "true",
	},
	"no modules": {
		cause: "rdma link delete rxe0; modprobe -r rdma_rxe rdma_ucm ib_uverbs",
		check: "modules", found: "ib_uverbs and rdma_ucm not loaded", command: []string{"modprobe -a ib_uverbs rdma_ucm"},
	},
	"one module less": {
		cause: "rmmod rdma_ucm",
		check: "modules", found: "rdma_ucm not loaded", command: []string{"modprobe -a rdma_ucm"},
	},
	"no device": {
		cause: "rdma link delete rxe0",
		check: "devices", found: "there is no RDMA device", command: []string{"rdma link add rxe0 type rxe netdev rdma0"},
	},
	"no device file": {
		cause: "rm /dev/infiniband/rdma_cm",
		check: "device files", found: "no rdma_cm in /dev/infiniband",
		command: []string{"mkdir -p /dev/infiniband", "mknod -m 666 /dev/infiniband/rdma_cm c 10 "},
	},
	"no device file in a container": {
		cause: "mv /dev/infiniband/uverbs0 /dev/hidden", start: []string{"unshare", "-p", "-f", "--mount-proc"},
		check: "device files", found: "no uverbs0 in /dev/infiniband", remedy: "docker run --device=/dev/infiniband",
		cure: "mv /dev/hidden /dev/infiniband/uverbs0", cureStart: []string{"unshare", "-p", "-f", "--mount-proc"},
	},
	"no permission": {
		cause: "chmod 600 /dev/infiniband/*", start: unprivileged("unlimited"),
		check: "device files", found: "no permission to open rdma_cm, uverbs0",
		command: []string{"chmod 666 /dev/infiniband/rdma_cm /dev/infiniband/uverbs0"},
	},
	"a limit on locked memory": {
		start: unprivileged("65536:unlimited"),
		check: "locked memory", found: "only 64 KiB may be locked", remedy: "LimitMEMLOCK=infinity",
		command: []string{"ulimit -l $(ulimit -H -l)"},
	},
	"a limit on locked memory that only root can raise": {
		start: unprivileged("65536"),
		check: "locked memory", found: "only 64 KiB may be locked", remedy: `"* - memlock unlimited" into /etc/security/limits.d`,
		cure: "true", cureStart: unprivileged("unlimited"),
	},
	"a limit on the device": {
		cause: "cd /sys/fs/cgroup; echo +rdma >cgroup.subtree_control; mkdir few; echo rxe0 hca_object=3 >few/rdma.max",
		start: []string{"sh", "-ec", `echo $$ >/sys/fs/cgroup/few/cgroup.procs; exec "$@"`, "sh"},
		check: "limits", found: "the control group /few allows rxe0 only hca_handle=max hca_object=3",
		command: []string{"echo rxe0 hca_handle=max hca_object=max >/sys/fs/cgroup/few/rdma.max"},
		undo:    "rmdir /sys/fs/cgroup/few",
	},
	"few open files": {
		start: []string{"prlimit", "--nofile=10"},
		check: "limits", found: "only 10 files may be open", remedy: "LimitNOFILE", cure: "true",
	},
	"no device file in a pod": {
		cause: "mv /dev/infiniband/uverbs0 /dev/hidden", start: []string{"env", "KUBERNETES_SERVICE_HOST=192.0.2.9"},
		check: "device files", found: "no uverbs0 in /dev/infiniband", remedy: "device plugin",
		cure: "mv /dev/hidden /dev/infiniband/uverbs0",
	},
	"another network namespace": {
		cause: "ip netns add pod; " + sameInterface, start: inPod,
		check: "interfaces", found: "rxe0 port 1 is on rdma0, which is not in this network namespace",
		remedy: "nsenter --net=/proc/1/ns/net PROGRAM", cure: "true", cureStart: append(inPod, "nsenter", "--net=/proc/1/ns/net"),
		undo: "ip netns delete pod",
	},
	"a device that is another network namespace's own": {
		cause: netnsMode("exclusive") + "; ip netns add pod; " + sameInterface, start: inPod,
		check: "devices", found: "there is no RDMA device", remedy: "rdma dev set NAME netns", cure: "true",
		undo: "ip netns delete pod; " + netnsMode("shared"),
	},
	"tiny MTU": {
		cause: "ip link set rdma0 mtu 351",
		check: "interfaces", found: "rdma0, whose MTU of 351 is below the 352 bytes", command: []string{"ip link set rdma0 mtu 1500"},
		undo: address6,
	},
	"interface down": {
		cause: "ip link set rdma0 down",
		check: "ports", found: "rxe0 port 1 is down: network interface rdma0 is down", command: []string{"ip link set rdma0 up"},
		undo: address6,
	},
	"no carrier": {
		cause: "ip link set rdma1 down",
		check: "ports", found: "network interface rdma0 has no carrier", remedy: "check that the other end is up",
		cure: "ip link set rdma1 up",
	},
	"no IP address": {
		cause: "ip address flush dev rdma0",
		check: "addresses", found: "rxe0 port 1 (rdma0) has none", remedy: "ip address add ADDRESS/PREFIX dev rdma0",
		cure: "ip address add 192.0.2.1/24 dev rdma0", undo: address6,
	},
}

// examine runs verbena doctor, after commands in the same shell.
func examine(t *testing.T, program string, start []string, commands string) diagnosis {
	t.Helper()
	args := append(slices.Clone(start), "bash", "-ec", commands+"\n"+`exec "$@"`, "bash", program, "doctor", "-j")
	status, stdout, stderr := run(t, args...)
	var report diagnosis
	require.NoError(t, json.Unmarshal([]byte(stdout), &report), "%s%s", stdout, stderr)
	if report.Works {
		require.Zero(t, status)
		require.Empty(t, stderr)
	} else {
		require.Equal(t, 1, status)
		require.Equal(t, "verbena doctor: RDMA does not work here: fix the first failure, and run verbena doctor again; VERBENA_DEVICE=soft runs programs on a device in user space meanwhile\n", stderr)
	}
	return report
}

func firstFailure(r diagnosis) finding {
	for _, f := range r.Findings {
		if f.Status == "FAIL" {
			return f
		}
	}
	return finding{}
}

// The first failure names the cause, and RDMA works after what is told there is
// done, and in what the later reports tell.
func TestAilments(t *testing.T) {
	needGuest(t)
	program := public(t, "verbena")
	for name, a := range ailments {
		cured := t.Run(name, func(t *testing.T) {
			healthy(t, program)
			system(t, a.cause)
			f := firstFailure(examine(t, program, a.start, ""))
			t.Logf("%+v", f)
			require.Equal(t, a.check, f.Check)
			require.Contains(t, f.Found, a.found)
			require.Contains(t, f.Remedy, a.remedy)
			require.Len(t, f.Commands, len(a.command))
			for i, command := range a.command {
				require.Contains(t, f.Commands[i], command)
			}
			a.treat(t, program, f)
			system(t, a.undo)
			healthy(t, program)
		})
		require.True(t, cured, "the guest is not in order for the next")
	}
}

// treat does what the findings tell until RDMA works. The kernel does some
// things a moment after it was told to.
func (a ailment) treat(t *testing.T, program string, f finding) {
	t.Helper()
	start, done, limits := a.start, map[string]bool{}, ""
	for end := time.Now().Add(patience); f.Status == "FAIL"; {
		require.True(t, time.Now().Before(end), f)
		commands := strings.Join(f.Commands, "\n")
		switch {
		case done[f.Check]:
		case a.cure != "" && f.Check == a.check:
			system(t, a.cure)
			start = a.cureStart
		case strings.HasPrefix(commands, "ulimit"):
			limits = commands
		default:
			system(t, commands)
		}
		done[f.Check] = true
		f = firstFailure(examine(t, program, start, limits))
	}
}

// healthy waits until RDMA works.
func healthy(t *testing.T, program string) {
	t.Helper()
	report := examine(t, program, nil, "")
	for end := time.Now().Add(patience); !report.Works; report = examine(t, program, nil, "") {
		require.True(t, time.Now().Before(end), firstFailure(report))
	}
}

func TestHealthy(t *testing.T) {
	d := testdevice.Require(t)
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "doctor")
	t.Log(stdout)
	require.Zero(t, status)
	require.Empty(t, stderr)
	require.NotContains(t, stdout, "FAIL")
	require.Contains(t, stdout, "\nRDMA works here.\n")
	require.Contains(t, stdout, "ok   libraries: libibverbs and librdmacm from rdma-core ")
	require.Contains(t, stdout, "ok   ports: "+d.Name+" port 1 is active")
	if d.IPv4.IsValid() {
		require.Contains(t, stdout, d.Name+" port 1 to itself at "+d.IPv4.String()+": a message and an RDMA write arrived")
	}
}
