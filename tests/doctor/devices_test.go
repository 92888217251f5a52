// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// devinfo returns what rdma-core's ibv_devinfo -v says of a device with one
// port, name by name.
func devinfo(t *testing.T, device string) map[string]string {
	t.Helper()
	out, err := exec.Command("ibv_devinfo", "-v", "-d", device).Output()
	require.NoError(t, err)
	info := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			info[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return info
}

// values reads lines with a name and a value.
func values(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = strings.TrimSpace(value)
	}
	return all
}

// -v prints the values that ibv_devinfo prints.
func TestAllAgainstDevinfo(t *testing.T) {
	d := testdevice.Require(t)
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "devices", "-v", "-d", d.Name)
	require.Zero(t, status, stderr)
	ours, theirs := values(stdout), devinfo(t, d.Name)
	for name, said := range map[string]string{
		"Name": "hca_id", "FirmwareVersion": "fw_ver", "NodeGUID": "node_guid", "SystemImageGUID": "sys_image_guid",
		"VendorPartID": "vendor_part_id", "Ports": "phys_port_cnt", "BoardID": "board_id", "MaxQP": "max_qp", "MaxQPWR": "max_qp_wr",
		"MaxSGERead": "max_sge_rd", "MaxCQ": "max_cq", "MaxCQE": "max_cqe", "MaxMR": "max_mr", "MaxPD": "max_pd",
		"MaxQPReadAtomic": "max_qp_rd_atom", "MaxResReadAtomic": "max_res_rd_atom", "MaxQPInitReadAtomic": "max_qp_init_rd_atom",
		"MaxMW": "max_mw", "MaxMcastGroups": "max_mcast_grp", "MaxMcastQPAttach": "max_mcast_qp_attach",
		"MaxTotalMcastQPAttach": "max_total_mcast_qp_attach", "MaxAH": "max_ah", "MaxSRQ": "max_srq", "MaxSRQWR": "max_srq_wr",
		"MaxSRQSGE": "max_srq_sge", "MaxPKeys": "max_pkeys", "LocalAckDelay": "local_ca_ack_delay", "MaxWQ": "max_wq_type_rq",
		"CompVectors": "num_comp_vectors", "LID": "port_lid", "SMLID": "sm_lid", "SMSL": "sm_sl", "PKeyTableLen": "pkey_tbl_len",
		"GIDTableLen": "gid_tbl_len", "SubnetTimeout": "subnet_timeout", "InitTypeReply": "init_type_reply",
	} {
		require.Contains(t, ours, name)
		require.Equal(t, theirs[said], ours[name], name)
	}
}

// The table has what ibv_devinfo says of the port, in other words.
func TestPortTable(t *testing.T) {
	d := testdevice.Require(t)
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "devices", "-d", d.Name)
	require.Zero(t, status, stderr)
	t.Log(stdout)
	theirs := devinfo(t, d.Name)
	number := regexp.MustCompile(`^[\d.]+`)
	rows := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, rows, 2)
	columns := regexp.MustCompile(` {2,}`).Split(rows[1], -1)
	speed := strings.TrimSuffix(number.FindString(theirs["active_speed"]), ".0")
	require.Equal(t, "PORT_ACTIVE (4)", theirs["state"])
	require.Equal(t, []string{
		d.Name, theirs["node_guid"], theirs["fw_ver"], theirs["port"], "-", "active", strings.ToLower(theirs["link_layer"]),
		number.FindString(theirs["active_mtu"]) + " of " + number.FindString(theirs["max_mtu"]), speed + " (1X FDR10)", d.NetDev,
	}, columns, "Soft-RoCE has one lane, of the speed that the interface has")
}

// The GIDs are those that ibv_devinfo prints.
func TestGIDTable(t *testing.T) {
	d := testdevice.Require(t)
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "devices", "-g", "-j", "-d", d.Name)
	require.Zero(t, status, stderr)
	var ours []struct {
		Device string
		ibverbs.GIDEntry
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &ours))
	theirs := devinfo(t, d.Name)
	for _, g := range ours {
		require.Equal(t, d.Name, g.Device)
		require.Equal(t, d.NetDev, g.NetDev)
		text, kind, _ := strings.Cut(theirs[fmt.Sprintf("GID[%3d]", g.Index)], ", ")
		require.Equal(t, netip.MustParseAddr(text).As16(), [16]byte(g.GID))
		require.Equal(t, kind, g.Type.String())
		delete(theirs, fmt.Sprintf("GID[%3d]", g.Index))
	}
	for name := range theirs {
		require.NotContains(t, name, "GID[")
	}
	status, stdout, stderr = run(t, process.CmdPath(t, "verbena"), "devices", "-g")
	require.Zero(t, status, stderr)
	t.Log(stdout)
	require.Regexp(t, d.Name+" +1 +"+fmt.Sprint(d.GIDIndex)+" +"+d.GID.String()+" +"+d.IPv4.String()+" +RoCE v2 +"+d.NetDev, stdout)
}

func TestNoSuchDevice(t *testing.T) {
	d := testdevice.Require(t)
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "devices", "-d", "no_such0")
	require.Equal(t, 1, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "verbena devices: open no_such0: no such RDMA device: this machine has "+d.Name)
}

// Without a device the error says so, and names the program that says more.
func TestNoDevices(t *testing.T) {
	needGuest(t)
	program := public(t, "verbena")
	system(t, "rdma link delete rxe0")
	status, stdout, stderr := run(t, process.CmdPath(t, "verbena"), "devices")
	require.Equal(t, 1, status)
	require.Empty(t, stdout)
	require.Equal(t, "verbena devices: open a device: no such RDMA device: this machine has none; VERBENA_DEVICE=soft selects a device in user space, in programs that import package softroce; verbena doctor says more\n", stderr)
	system(t, "rdma link add rxe0 type rxe netdev rdma0; chmod 666 /dev/infiniband/*")
	healthy(t, program)
}
