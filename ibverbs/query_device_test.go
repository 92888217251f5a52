package ibverbs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// sysfs returns the kernel's word on the device.
func sysfs(t *testing.T, d testdevice.Device, path string) string {
	t.Helper()
	b := must(os.ReadFile(filepath.Join("/sys/class/infiniband", d.Name, path)))(t)
	return strings.TrimSpace(string(b))
}

func TestDevices(t *testing.T) {
	d := testdevice.Require(t)
	testdevice.NoLeaks(t)
	devices := must(ibverbs.Devices())(t)
	var names []string
	for _, found := range devices {
		names = append(names, found.Name)
		if found.Name == d.Name {
			require.Equal(t, sysfs(t, d, "node_guid"), found.GUID.String())
			require.NotZero(t, found.NodeType)
			require.NotEqual(t, -1, int(found.Transport))
		}
	}
	require.Contains(t, names, d.Name)
	entries := must(os.ReadDir("/sys/class/infiniband"))(t)
	require.Len(t, names, len(entries))
}

func TestOpenByName(t *testing.T) {
	d := testdevice.Require(t)
	testdevice.NoLeaks(t)
	for _, name := range []string{d.Name, ""} {
		c := must(ibverbs.Open(name))(t)
		if name != "" {
			require.Equal(t, name, c.Name())
		}
		require.NotNil(t, c.Raw())
		require.Len(t, ibverbs.OpenObjects(), 1)
		require.NoError(t, c.Close())
	}
	for _, name := range []string{"no_such0", d.Name + " ", d.Name + "\x00"} {
		_, err := ibverbs.Open(name)
		require.ErrorIs(t, err, ibverbs.ErrNoDevice)
		require.ErrorContains(t, err, "open "+name+": no such RDMA device: this machine has ")
		require.ErrorContains(t, err, d.Name, "what there is")
	}
}

// devinfo returns what ibv_devinfo -v of rdma-core says, name by name, nil if
// it is not installed.
func devinfo(t *testing.T, d testdevice.Device) map[string]string {
	t.Helper()
	path, err := exec.LookPath("ibv_devinfo")
	if err != nil {
		return nil
	}
	out := must(exec.Command(path, "-v", "-d", d.Name, "-i", strconv.Itoa(d.Port)).Output())(t)
	info := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			info[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return info
}

func TestQueryDevice(t *testing.T) {
	r := open(t)
	a := must(r.c.QueryDevice())(t)
	require.Equal(t, sysfs(t, r.device, "node_guid"), a.NodeGUID.String())
	require.Equal(t, sysfs(t, r.device, "sys_image_guid"), a.SystemImageGUID.String())
	require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, "ports")))(t), a.Ports)

	info := devinfo(t, r.device)
	if info == nil {
		t.Log("ibv_devinfo is not installed: its values were not compared")
		return
	}
	for name, got := range map[string]any{
		"fw_ver": a.FirmwareVersion, "vendor_part_id": a.VendorPartID, "phys_port_cnt": a.Ports,
		"node_guid": a.NodeGUID, "sys_image_guid": a.SystemImageGUID,
		"vendor_id": fmt.Sprintf("0x%04x", a.VendorID), "hw_ver": fmt.Sprintf("0x%X", a.HardwareVersion),
		"max_mr_size": fmt.Sprintf("0x%x", a.MaxMRSize), "page_size_cap": fmt.Sprintf("0x%x", a.PageSizeCap),
		"max_qp": a.MaxQP, "max_qp_wr": a.MaxQPWR, "max_sge": a.MaxSGE, "max_sge_rd": a.MaxSGERead,
		"max_cq": a.MaxCQ, "max_cqe": a.MaxCQE, "max_mr": a.MaxMR, "max_pd": a.MaxPD,
		"max_qp_rd_atom": a.MaxQPReadAtomic, "max_qp_init_rd_atom": a.MaxQPInitReadAtomic,
		"max_mw": a.MaxMW, "max_mcast_grp": a.MaxMcastGroups, "max_ah": a.MaxAH, "max_srq": a.MaxSRQ,
		"max_srq_wr": a.MaxSRQWR, "max_srq_sge": a.MaxSRQSGE, "max_pkeys": a.MaxPKeys,
		"device_cap_flags": fmt.Sprintf("0x%08x", uint32(a.Capabilities)),
	} {
		require.Equal(t, info[name], fmt.Sprint(got), name)
	}
	require.Contains(t, info["atomic_cap"], fmt.Sprintf("(%d)", uint32(a.AtomicCap)))
}

func TestQueryPort(t *testing.T) {
	r := open(t)
	p := must(r.c.QueryPort(r.device.Port))(t)
	dir := fmt.Sprintf("ports/%d/", r.device.Port)
	require.Equal(t, ibverbs.PortActive, p.State)
	require.True(t, strings.HasPrefix(sysfs(t, r.device, dir+"state"), fmt.Sprintf("%d: ", int(p.State))))
	require.True(t, strings.HasPrefix(sysfs(t, r.device, dir+"phys_state"), fmt.Sprintf("%d: ", p.PhysicalState)))
	require.Equal(t, sysfs(t, r.device, dir+"lid"), fmt.Sprintf("0x%x", p.LID))
	require.Equal(t, sysfs(t, r.device, dir+"sm_lid"), fmt.Sprintf("0x%x", p.SMLID))
	require.Equal(t, sysfs(t, r.device, dir+"lid_mask_count"), strconv.Itoa(int(p.LMC)))
	require.Equal(t, sysfs(t, r.device, dir+"cap_mask"), fmt.Sprintf("0x%08x", uint32(p.Capabilities)))
	require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, dir, "gids")))(t), p.GIDTableLen)
	require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, dir, "pkeys")))(t), p.PKeyTableLen)
	require.NotZero(t, p.MaxMessageSize)
	require.NotZero(t, p.ActiveMTU.Bytes())
	require.LessOrEqual(t, p.ActiveMTU, p.MaxMTU)
	require.NotZero(t, p.ActiveSpeed)
	if r.device.NetDev != "" {
		require.Equal(t, ibverbs.LinkEthernet, p.LinkLayer)
		require.Zero(t, p.LID)
	}
	if info := devinfo(t, r.device); info != nil {
		require.Contains(t, info["active_mtu"], p.ActiveMTU.String()+" (")
		require.Contains(t, info["max_mtu"], p.MaxMTU.String()+" (")
		require.Equal(t, info["max_msg_sz"], fmt.Sprintf("0x%x", p.MaxMessageSize))
	}

	_, err := r.c.QueryPort(200)
	require.Error(t, err)
	require.ErrorContains(t, err, "ibv_query_port ("+r.c.Name()+" port 200)")
}

func TestQueryGID(t *testing.T) {
	r := open(t)
	p := must(r.c.QueryPort(r.device.Port))(t)
	found := 0
	for i := range p.GIDTableLen {
		gid := must(r.c.QueryGID(r.device.Port, i))(t)
		require.Equal(t, sysfs(t, r.device, fmt.Sprintf("ports/%d/gids/%d", r.device.Port, i)), gid.String())
		if !gid.IsZero() {
			found++
		}
	}
	require.NotZero(t, found)
	gid := must(r.c.QueryGID(r.device.Port, r.device.GIDIndex))(t)
	require.Equal(t, r.device.GID, gid)
	if r.device.IPv4.IsValid() {
		require.Equal(t, r.device.IPv4, gid.Addr(), "RoCE v2 takes the interface's address")
	}

	_, err := r.c.QueryGID(r.device.Port, 1<<20)
	require.ErrorContains(t, err, "ibv_query_gid ("+r.c.Name()+" port ")
	t.Log(err)
}
