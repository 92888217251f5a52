// SPDX-License-Identifier: Apache-2.0

//go:build linux

package applications

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// TestKernel runs applications on a device of the kernel, with less work, as it
// may be in an emulated guest.
func TestKernel(t *testing.T) {
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("scripts/device -v -run TestKernel ./tests/applications runs it in the VM")
	}
	host := testdevice.Require(t).IPv4.String()
	device := network{host, host, plain, plain, func(*process.Process) bool {
		ids, err := exec.Command("rdma", "resource", "show", "cm_id").Output()
		return err == nil && strings.Contains(string(ids), "state LISTEN")
	}}
	var took table
	for _, a := range []application{
		fio("write", false, 64),
		fio("read", false, 64),
		fio("send", false, 64),
		qperf("latency", false, "rc_lat", "tcp_lat"),
		qperf("bandwidth", false, "rc_bw", "tcp_bw"),
		pingpong("msg", false, "-e msg -p verbs", "-S 4096"),
		uDAPL(4096, 10),
	} {
		t.Run(a.name, func(t *testing.T) {
			a.needs(t)
			took = append(took, row{name: a.name, device: a.device.run(t, device), tcp: a.tcp.run(t, tcp)})
		})
	}
	t.Logf("how long the clients took:\n%v", took)
}
