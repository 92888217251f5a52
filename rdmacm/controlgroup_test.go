// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// When a control group of the kernel refuses an object, the error has a hint
// that names the group and the limit. Where the group has room, errors have no
// such hint.
func TestControlGroup(t *testing.T) {
	d := needDevice(t)
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("needs a device of the kernel, and the control groups of a machine of its own")
	}
	const root = "/sys/fs/cgroup"
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+rdma"), 0))
	for name, tt := range map[string]struct{ most, call, hint string }{
		"no handle":   {"hca_handle=0 hca_object=max", "open", "allows 0 of hca_handle on " + d.Name},
		"no listener": {"hca_handle=0 hca_object=max", "listen", "allows 0 of hca_handle on " + d.Name},
		"one object":  {"hca_handle=max hca_object=1", "objects", "allows 1 of hca_object on " + d.Name},
		"room":        {"hca_handle=max hca_object=max", "objects", ""},
		"large queue": {"hca_handle=max hca_object=100", "queue", ""},
	} {
		t.Run(name, func(t *testing.T) {
			group := filepath.Join(root, "verbena-"+strings.ReplaceAll(name, " ", "-"))
			require.NoError(t, os.Mkdir(group, 0o755))
			limit := func(limits string) {
				require.NoError(t, os.WriteFile(filepath.Join(group, "rdma.max"), []byte(d.Name+" "+limits), 0))
			}
			limit(tt.most)
			// Linux 6.1 keeps the limits of a group that is removed with them,
			// and crashes when the device is removed.
			defer func() {
				limit("hca_handle=max hca_object=max")
				require.NoError(t, os.Remove(group))
			}()
			cmd := process.Command(t, "grouped", tt.call, d.Name, d.IPv4.String())
			grouped := exec.Command("sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)...)
			grouped.Env = cmd.Env
			p := process.Run(t, grouped)
			require.Zero(t, p.Wait(), p.Output())
			// Newer kernels have this file.
			if events, err := os.ReadFile(filepath.Join(group, "rdma.events")); err == nil {
				t.Logf("rdma.events: %s", events)
			}
			if tt.hint == "" {
				require.NotContains(t, p.Stdout(), "control group")
				return
			}
			require.Contains(t, p.Stdout(), "the control group /"+filepath.Base(group)+" "+tt.hint+", and all are in use; see rdma.max there")
		})
	}
}

// grouped prints the error of a call in a control group, if any.
func grouped(args []string) error {
	if args[0] == "listen" {
		_, err := rdmacm.Listen(context.Background(), netip.AddrPortFrom(netip.MustParseAddr(args[2]), 0).String(), nil)
		fmt.Println(err)
		return nil
	}
	device, err := ibverbs.Open(args[1])
	if args[0] == "open" || err != nil {
		fmt.Println(err)
		return nil
	}
	if args[0] == "queue" {
		_, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1 << 30})
		if err == nil {
			return errors.New("there is a completion queue")
		}
		fmt.Println(err)
		return nil
	}
	for range 10 {
		if _, err := device.AllocPD(); err != nil {
			fmt.Println(err)
			if !errors.Is(err, syscall.EAGAIN) {
				return err
			}
		}
	}
	return nil
}
