// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
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
			require.NotZero(t, found.GUID)
			if !testdevice.Soft() {
				require.Equal(t, sysfs(t, d, "node_guid"), found.GUID.String())
			}
			require.NotZero(t, found.NodeType)
			require.NotEqual(t, -1, int(found.Transport))
		}
	}
	require.Contains(t, names, d.Name)
	if testdevice.Soft() {
		require.Len(t, names, 1, "a program has this device or the kernel's")
		return
	}
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
			require.Equal(t, name, fmt.Sprint(c))
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
// it is not installed or cannot know the device.
func devinfo(t *testing.T, d testdevice.Device) map[string]string {
	t.Helper()
	if testdevice.Soft() {
		return nil
	}
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
	require.NotZero(t, a.NodeGUID)
	if !testdevice.Soft() {
		require.Equal(t, sysfs(t, r.device, "node_guid"), a.NodeGUID.String())
		require.Equal(t, sysfs(t, r.device, "sys_image_guid"), a.SystemImageGUID.String())
		require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, "ports")))(t), a.Ports)
	}

	info := devinfo(t, r.device)
	if info == nil {
		t.Log("there is no ibv_devinfo that knows the device: its values were not compared")
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
	require.Equal(t, link.Active, p.State)
	if !testdevice.Soft() {
		dir := fmt.Sprintf("ports/%d/", r.device.Port)
		require.True(t, strings.HasPrefix(sysfs(t, r.device, dir+"state"), fmt.Sprintf("%d: ", int(p.State))))
		require.True(t, strings.HasPrefix(sysfs(t, r.device, dir+"phys_state"), fmt.Sprintf("%d: ", p.PhysicalState)))
		require.Equal(t, sysfs(t, r.device, dir+"lid"), fmt.Sprintf("0x%x", p.LID))
		require.Equal(t, sysfs(t, r.device, dir+"sm_lid"), fmt.Sprintf("0x%x", p.SMLID))
		require.Equal(t, sysfs(t, r.device, dir+"lid_mask_count"), strconv.Itoa(int(p.LMC)))
		require.Equal(t, sysfs(t, r.device, dir+"cap_mask"), fmt.Sprintf("0x%08x", uint32(p.Capabilities)))
		require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, dir, "gids")))(t), p.GIDTableLen)
		require.Len(t, must(os.ReadDir(filepath.Join("/sys/class/infiniband", r.device.Name, dir, "pkeys")))(t), p.PKeyTableLen)
	}
	require.NotZero(t, p.MaxMessageSize)
	require.NotZero(t, p.ActiveMTU.Bytes())
	require.LessOrEqual(t, p.ActiveMTU, p.MaxMTU)
	require.NotZero(t, p.ActiveSpeed)
	if r.device.NetDev != "" {
		require.Equal(t, link.Ethernet, p.LinkLayer)
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
		if !testdevice.Soft() {
			require.Equal(t, sysfs(t, r.device, fmt.Sprintf("ports/%d/gids/%d", r.device.Port, i)), gid.String())
		}
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

// Parents close after their children, and say which those are.
func TestCloseOrder(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Queries)
	testdevice.NoLeaks(t)
	c := must(ibverbs.Open(d.Name))(t)
	pd := must(c.AllocPD())(t)
	ch := must(c.CreateCompChannel())(t)
	cq := must(c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch}))(t)
	mr := must(pd.Alloc(64, 0))(t)
	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}))(t)
	require.Len(t, ibverbs.OpenObjects(), 6)
	require.Same(t, c, pd.Device())
	require.Same(t, pd, qp.PD())
	require.Equal(t, ibverbs.QPTypeRC, qp.Type())
	require.NotZero(t, qp.Num())
	require.Equal(t, qp.Num(), qp.Raw().QpNum)
	require.GreaterOrEqual(t, cq.Cap(), 1)

	busy := func(close func() error, children ...string) {
		t.Helper()
		err := close()
		require.ErrorIs(t, err, syscall.EBUSY)
		var busyErr *ibverbs.BusyError
		require.ErrorAs(t, err, &busyErr)
		require.Len(t, busyErr.Children, len(children), err.Error())
		for i, kind := range children {
			require.Contains(t, busyErr.Children[i], kind+" ")
			require.Contains(t, err.Error(), busyErr.Children[i])
		}
	}
	busy(c.Close, "CQ", "PD", "completion channel")
	busy(pd.Close, "MR", "QP")
	busy(ch.Close, "CQ")
	busy(cq.Close, "QP")
	require.Equal(t, ibverbs.QPStateReset, must(qp.State())(t), "nothing was closed")
	require.NoError(t, must(pd.Alloc(1, 0))(t).Close())

	require.NoError(t, qp.Close())
	busy(pd.Close, "MR")
	require.NoError(t, cq.Close())
	require.NoError(t, mr.Close())
	require.NoError(t, ch.Close())
	busy(c.Close, "PD")
	require.NoError(t, pd.Close())
	require.NoError(t, c.Close())
	for _, again := range []interface{ Close() error }{c, pd, ch, cq, mr, qp} {
		require.NoError(t, again.Close())
	}

	for name, err := range map[string]error{
		"AllocPD":      second(c.AllocPD()),
		"CreateCQ":     second(c.CreateCQ(ibverbs.CQConfig{CompQueue: 1})),
		"channel":      second(c.CreateCompChannel()),
		"QueryDevice":  second(c.QueryDevice()),
		"QueryPort":    second(c.QueryPort(1)),
		"QueryGID":     second(c.QueryGID(1, 0)),
		"Alloc":        second(pd.Alloc(1, 0)),
		"Register":     second(pd.Register(make([]byte, 1), 0)),
		"CreateQP":     second(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq})),
		"Poll":         second(cq.Poll(nil)),
		"closed queue": second(qp.State()),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
}

// Objects of two contexts do not fit together, even on one device: C would take
// one for another that has the same number.
func TestObjectsOfTwoContexts(t *testing.T) {
	r := open(t)
	other := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(other)
	ch := must(other.CreateCompChannel())(t)
	r.cleanup(ch)
	_, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "belongs to another open device")

	mine := r.cq(1, nil)
	theirs := must(other.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch}))(t)
	r.cleanup(theirs)
	for _, config := range []ibverbs.QPConfig{
		{SendCQ: theirs, RecvCQ: mine}, {SendCQ: mine, RecvCQ: theirs}, {SendCQ: theirs, RecvCQ: theirs},
	} {
		_, err := r.pd.CreateQP(config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "belongs to another open device")
	}
}

// C knows a queue of which Go does not: what it refuses stays usable.
func TestCloseThatCRefuses(t *testing.T) {
	r := open(t)
	ch := r.channel()
	a, b := r.pair(ch)
	unknown := hiddenQP(t, r, b.recvCQ)
	require.NoError(t, b.qp.Close()) // so that for Go the queue is unused
	w := waiter(limit(t), b.recvCQ)
	for woken := false; !woken; { // a wait that begins after the failure goes on
		err := b.recvCQ.Close()
		require.ErrorIs(t, err, syscall.EBUSY)
		require.ErrorContains(t, err, "ibv_destroy_cq (CQ ")
		select {
		case got := <-w:
			require.ErrorIs(t, got.err, os.ErrClosed)
			woken = true
		default:
			runtime.Gosched()
		}
	}

	// The queue still gets its events, also those that another one's wait reads.
	c := r.end(ch)
	d := &end{rig: r, qp: r.qp(ibverbs.QPConfig{SendCQ: r.cq(depth, ch), RecvCQ: b.recvCQ, SendQueue: 8, RecvQueue: 8})}
	d.recv = must(ibverbs.NewRecvBatch(1, 0))(t)
	r.connect(c, linkTo(d.qp))
	r.connect(d, linkTo(c.qp))
	leader := waiter(limit(t), a.recvCQ)
	untilWaiting(t, a.recvCQ)
	w = waiter(limit(t), b.recvCQ)
	untilWaiting(t, b.recvCQ)
	ping(t, c, d, 1)
	requireOne(t, ended(t, w), 1)
	unknown()
	require.NoError(t, d.qp.Close())
	require.NoError(t, a.qp.Close())
	require.NoError(t, a.recvCQ.Close())
	require.ErrorIs(t, ended(t, leader).err, os.ErrClosed)
}

// A queue pair, its completion queue and its memory on a parent domain with a
// thread domain work like those of the protection domain, and use its regions.
// Each domain is closed after what was made with it.
func TestParentDomain(t *testing.T) {
	r := open(t)
	r.have(testdevice.ParentDomains)
	td := must(r.c.AllocTD())(t)
	r.cleanup(td)
	parent := must(r.pd.AllocParentDomain(td))(t)
	r.cleanup(parent)
	require.Same(t, r.pd, parent.Parent())
	unprotected := must(r.pd.AllocUnprotectedParentDomain(nil))(t)
	require.NoError(t, unprotected.Close())

	cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8, SingleThreaded: true, ParentDomain: parent}))(t)
	r.cleanup(cq)
	shared := r.alloc(4096, anyAccess)
	child := *r
	child.pd = parent
	own := child.alloc(4096, anyAccess)
	ends := make([]*end, 2)
	for i := range ends {
		ends[i] = &end{rig: &child, sendCQ: cq, recvCQ: cq, mr: shared}
		ends[i].qp = child.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 2, RecvQueue: 2})
		ends[i].send, ends[i].recv = must(ibverbs.NewSendBatch(1, 1))(t), must(ibverbs.NewRecvBatch(1, 1))(t)
	}
	r.connect(ends[0], linkTo(ends[1].qp))
	r.connect(ends[1], linkTo(ends[0].qp))
	want := pattern(own.Bytes(), 5)
	ends[0].postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, shared.Remote(), ibverbs.SendSignaled, own.Sub(0, 4096))
	})
	collectOK(t, cq, 1)
	require.Equal(t, want, shared.Bytes())
	for name, object := range map[string]io.Closer{"thread domain": td, "parent domain": parent, "protection domain": r.pd} {
		var busy *ibverbs.BusyError
		require.ErrorAs(t, object.Close(), &busy, name)
	}
}

// A queue pair with a limited rate still sends everything, and the limit can be
// lifted again.
func TestRateLimit(t *testing.T) {
	r := open(t)
	r.have(testdevice.Pacing)
	a, b := r.pair(nil)
	pacing := r.attr.PacketPacing
	if pacing.MinRate > 1 {
		require.ErrorIs(t, a.qp.SetRateLimit(ibverbs.RateLimit{KilobitsPerSecond: pacing.MinRate - 1}), syscall.EINVAL)
	}
	for i, limit := range []ibverbs.RateLimit{
		{KilobitsPerSecond: max(pacing.MinRate, 8000), MaxBurst: 4096, TypicalPacket: 1024}, {KilobitsPerSecond: pacing.MaxRate}, {},
	} {
		require.NoError(t, a.qp.SetRateLimit(limit))
		want := pattern(a.mr.Bytes(), byte(i))
		a.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.Write(1, b.mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, a.mr.Len()))
		})
		collectOK(t, a.sendCQ, 1)
		require.Equal(t, want, b.mr.Bytes())
	}
}

// Soft-RoCE has no parent domains, and so no queue on one. What is no parent
// domain is refused before that.
func TestParentDomainUnsupported(t *testing.T) {
	r := open(t)
	for name, err := range map[string]error{
		"plain":       closing(r.pd.AllocParentDomain(nil)),
		"unprotected": closing(r.pd.AllocUnprotectedParentDomain(nil)),
	} {
		if err != nil || r.device.SoftRoCE() {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
			require.ErrorContains(t, err, "ibv_alloc_parent_domain (PD ", name)
		}
	}
	_, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, ParentDomain: r.pd})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "which is not a parent domain")
}

// What is more than the device has is refused with the call and the object;
// TestTooMuch has the sizes of queues.
func TestAboveTheDevicesLimits(t *testing.T) {
	r := open(t)
	attr := must(r.c.QueryDevice())(t)
	cq := r.cq(1, nil)
	qp := func(c ibverbs.QPConfig) error {
		c.SendCQ, c.RecvCQ = cq, cq
		return closing(r.pd.CreateQP(c))
	}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"segments of receives": {qp(ibverbs.QPConfig{RecvQueue: 1, RecvSegments: attr.MaxSGE + 1}), "ibv_create_qp (PD "},
		"receives":             {qp(ibverbs.QPConfig{RecvQueue: attr.MaxQPWR + 1}), "ibv_create_qp (PD "},
		"extended QP": {
			qp(ibverbs.QPConfig{SendQueue: attr.MaxQPWR + 1, SendOps: libibverbs.IBV_QP_EX_WITH_SEND}), "ibv_create_qp_ex (PD ",
		},
		"interrupt vector": {closing(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: 1 << 20})), "): Vector is 1048576, not from 0 to "},
		"extended CQ": {
			closing(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: attr.MaxCQE + 1, Fields: ibverbs.WCStandard})), "ibv_create_cq_ex (",
		},
		"extended CQ without entries": {closing(r.c.CreateCQ(ibverbs.CQConfig{Fields: ibverbs.WCStandard})), "): CompQueue is 0, not from 1 to "},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, r.c.Name(), name)
	}
}

// What the tables of transitions cannot know, the device refuses, and the queue
// pair stays in its state.
func TestModifyRefusedByDevice(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	ports := must(r.c.QueryDevice())(t).Ports
	for name, tt := range map[string]struct {
		from ibverbs.QPState
		move func(e *end) error
		want error
	}{
		"port": {ibverbs.QPStateReset, func(e *end) error {
			init := e.rig.init(ibverbs.QPTypeRC)
			init.Port = ports + 1
			return e.qp.ToInit(init)
		}, syscall.EINVAL},
		"port of the path": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.Port = ports + 1
			return e.qp.ToRTR(rtr)
		}, syscall.EINVAL},
		"empty entry of the GID table": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.SGIDIndex = 200
			return e.qp.ToRTR(rtr)
		}, syscall.ENODATA},
		"no GID": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.DGID = ibverbs.GID{}
			return e.qp.ToRTR(rtr)
		}, syscall.EINVAL},
		"reads under way": {ibverbs.QPStateRTR, func(e *end) error {
			rts := e.rig.rts(ibverbs.QPTypeRC)
			rts.MaxReadAtomic = 255
			return e.qp.ToRTS(rts)
		}, syscall.EINVAL},
		"unknown attribute": {ibverbs.QPStateInit, func(e *end) error {
			return e.qp.ModifyRaw(&libibverbs.QpAttr{}, 1<<30)
		}, syscall.EINVAL},
		"unknown state": {ibverbs.QPStateInit, func(e *end) error {
			return e.qp.ModifyRaw(&libibverbs.QpAttr{QpState: 9}, libibverbs.IBV_QP_STATE)
		}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			e := r.sub(t).typedEnd(ibverbs.QPConfig{})
			if tt.from != ibverbs.QPStateReset {
				r.bring(e.qp, 5, tt.from)
			}
			err := tt.move(e)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, "ibv_modify_qp (QP ")
			require.Equal(t, tt.from, must(e.qp.State())(t))
		})
	}
}

// Ports and indices that the device does not have.
func TestQueryOutside(t *testing.T) {
	r := open(t)
	const noPort, noIndex = 77, 1 << 15
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"port":                {second(r.c.QueryPort(noPort)), syscall.EINVAL},
		"GID of a port":       {second(r.c.QueryGID(noPort, 0)), syscall.EINVAL},
		"GID index":           {second(r.c.QueryGID(r.device.Port, noIndex)), syscall.EINVAL},
		"GID entry of a port": {second(r.c.QueryGIDEntry(noPort, 0)), syscall.EINVAL},
		"GID entry index":     {second(r.c.QueryGIDEntry(r.device.Port, noIndex)), syscall.EINVAL},
		"GIDs of a port":      {second(r.c.QueryPortGIDs(noPort)), syscall.EINVAL},
		"best GID of a port":  {second(r.c.BestGID(noPort, ibverbs.GIDConfig{})), syscall.EINVAL},
		"interface of a port": {second(r.c.NetDev(noPort)), syscall.EINVAL},
		"P_Key of a port":     {second(r.c.QueryPKey(noPort, 0)), syscall.ENOENT},
		"P_Key index":         {second(r.c.QueryPKey(r.device.Port, noIndex)), syscall.ENOENT},
		"P_Keys of a port":    {second(r.c.QueryPKeyTable(noPort)), syscall.EINVAL},
		"find a P_Key":        {second(r.c.PKeyIndex(noPort, 0xFFFF)), ibverbs.ErrNoPKey},
	} {
		require.ErrorIs(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, r.c.Name()+" port ", name)
	}
}

// What the device cannot give is refused with the call, the object and the
// numbers, and nothing is left of it.
func TestTooMuch(t *testing.T) {
	r := open(t)
	attr := must(r.c.QueryDevice())(t)
	cq := r.cq(1, nil)
	qp := func(c ibverbs.QPConfig) error {
		c.SendCQ, c.RecvCQ = cq, cq
		return second(r.pd.CreateQP(c))
	}
	above := func(name string, n, limit int) string {
		return fmt.Sprintf(", %s %d is above the device's limit of %d): ", name, n, limit)
	}
	ofSRQ := func(name string, n, limit int) []string {
		if attr.MaxSRQ == 0 {
			return []string{"ibv_create_srq (PD ", r.c.Name() + " has no shared receive queues"}
		}
		return []string{"ibv_create_srq (PD ", above(name, n, limit)}
	}
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"send queue": {qp(ibverbs.QPConfig{SendQueue: attr.MaxQPWR + 1}), []string{
			"ibv_create_qp (PD ", "of " + r.c.Name() + above("SendQueue", attr.MaxQPWR+1, attr.MaxQPWR),
		}},
		"huge":          {qp(ibverbs.QPConfig{SendQueue: math.MaxInt32}), []string{"ibv_create_qp (PD ", "of " + r.c.Name()}},
		"receive queue": {qp(ibverbs.QPConfig{RecvQueue: attr.MaxQPWR + 1}), []string{"ibv_create_qp (PD ", above("RecvQueue", attr.MaxQPWR+1, attr.MaxQPWR)}},
		"segments":      {qp(ibverbs.QPConfig{SendQueue: 1, SendSegments: attr.MaxSGE + 1}), []string{"ibv_create_qp (PD ", above("SendSegments", attr.MaxSGE+1, attr.MaxSGE)}},
		"inline": {qp(ibverbs.QPConfig{SendQueue: 1, MaxInline: 1 << 20}), []string{
			"ibv_create_qp (PD ", ", MaxInline 1048576 may be above the device's limit, which is not known): ",
		}},
		"completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: attr.MaxCQE + 1})),
			[]string{"ibv_create_cq (", " entries on " + r.c.Name() + above("CompQueue", attr.MaxCQE+1, attr.MaxCQE)},
		},
		"no completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{})),
			[]string{"ibv_create_cq (" + r.c.Name() + "): CompQueue is 0, not from 1 to 2147483647"},
		},
		"more than C can say": {
			second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: math.MaxInt})),
			[]string{fmt.Sprintf("): CompQueue is %d, not from 1 to 2147483647", math.MaxInt)},
		},
		"negative vector": {
			second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: -1})),
			[]string{"): Vector is -1, not from 0 to "},
		},
		"shared receive queue": {
			second(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: attr.MaxSRQWR + 1})),
			ofSRQ("RecvQueue", attr.MaxSRQWR+1, attr.MaxSRQWR),
		},
		"segments of a shared receive queue": {
			second(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1, RecvSegments: attr.MaxSRQSGE + 1})),
			ofSRQ("RecvSegments", attr.MaxSRQSGE+1, attr.MaxSRQSGE),
		},
		"resized": {cq.Resize(attr.MaxCQE + 1), []string{"ibv_resize_cq (CQ ", above("CompQueue", attr.MaxCQE+1, attr.MaxCQE)}},
		"memory":  {second(r.pd.Alloc(math.MaxInt, 0)), []string{fmt.Sprintf("map %d bytes: cannot allocate memory", math.MaxInt)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, tt.err)
			t.Log(tt.err)
			for _, want := range tt.want {
				require.ErrorContains(t, tt.err, want)
			}
			if e := (*ibverbs.Error)(nil); errors.As(tt.err, &e) {
				require.NotZero(t, e.Errno)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// Errors say what the device lacks.
func TestLacks(t *testing.T) {
	r := open(t)
	cq := r.cq(2, nil)
	for want, tt := range map[string]struct {
		feature testdevice.Feature
		create  func() error
	}{
		" has no address handles": {testdevice.Handles, func() error { return closing(r.pd.CreateAH(r.path())) }},
		" has no memory windows":  {testdevice.Windows, func() error { return closing(r.pd.AllocMW(ibverbs.MWType1)) }},
		" has no shared receive queues": {testdevice.SRQs, func() error {
			return closing(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))
		}},
		" uses iWARP, which has only reliable connections": {testdevice.InfiniBand, func() error {
			return closing(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeUD, SendCQ: cq, RecvCQ: cq}))
		}},
	} {
		if !testdevice.HasAttr(r.c, &r.attr, tt.feature) {
			err := tt.create()
			require.ErrorIs(t, err, errors.ErrUnsupported, want)
			require.ErrorContains(t, err, r.c.Name()+want)
		}
	}
}
