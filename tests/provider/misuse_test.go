// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// A closed object answers every call with os.ErrClosed, whatever the arguments
// are, closes again without an error, and never touches what C had of it:
// fakelib makes C's memory unreadable nonsense when it is freed.
func TestUseAfterClose(t *testing.T) {
	for kind, create := range kinds {
		t.Run(kind, func(t *testing.T) {
			r := open(t)
			known := r.known(t)
			o := create(t, r)
			before := answers(t, o)
			require.NoError(t, o.Close())
			require.NoError(t, o.Close(), "twice")
			r.p.Forget()
			for _, m := range methods(o) {
				if m.Name == "Close" {
					continue
				}
				for name, args := range map[string]func(reflect.Type) reflect.Value{
					"zero": misuse.Zero, "filled": misuse.Filled(1, known...),
				} {
					_, err := m.Call(args)
					requireNoPanic(t, err)
					switch {
					case m.Fails && name == "filled":
						require.ErrorIs(t, err, os.ErrClosed, m.Name)
					case m.Fails:
						require.Error(t, err, m.Name)
					}
				}
			}
			require.Equal(t, before, answers(t, o))
			require.Empty(t, r.p.Names(), "C learns nothing of it")
		})
	}
}

// answers are what the methods say that only say something about the object.
// Its memory, and C's address of it, are only there while it is open.
func answers(t *testing.T, o closer) map[string]any {
	t.Helper()
	answers := map[string]any{}
	for _, m := range methods(o) {
		if m.Getter() && m.Name != "Bytes" {
			results, err := m.Call(misuse.Zero)
			require.NoError(t, err)
			answers[m.Name] = results[0]
			if v := reflect.ValueOf(results[0]); v.Kind() == reflect.Pointer {
				answers[m.Name] = v.Pointer()
			}
		}
	}
	return answers
}

// noFile stands for files: package os itself panics for one that it has not
// opened.
var noFile *os.File

// No mistake of a caller's panics or crashes C.
func TestNonsenseArguments(t *testing.T) {
	for kind, create := range kinds {
		for name, args := range map[string]func(reflect.Type) reflect.Value{
			"zero": misuse.Zero, "ones": misuse.Filled(1, noFile), "negative": misuse.Filled(-1, noFile),
			"largest": misuse.Filled(math.MaxInt64, noFile), "least": misuse.Filled(math.MinInt64, noFile),
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				r := open(t)
				o := create(t, r)
				for _, m := range methods(o) {
					if m.Name != "Close" {
						r.p.Forget()
						_, err := m.Call(args)
						requireNoPanic(t, err)
						requirePublic(t, err)
						var failed *ibverbs.Error
						if errors.As(err, &failed) {
							require.NotEmpty(t, r.p.Names(), "%s: C was not called: %v", m.Name, err)
						}
					}
				}
				require.NoError(t, o.Close())
			})
		}
	}
}

// Methods of objects that the package did not make fail.
func TestObjectsNobodyMade(t *testing.T) {
	r := open(t)
	known := r.known(t)
	for kind, create := range kinds {
		o := create(t, r)
		require.NoError(t, o.Close())
		for name, wrong := range map[string]reflect.Value{
			"nil": reflect.Zero(reflect.TypeOf(o)), "zero": reflect.New(reflect.TypeOf(o).Elem()),
		} {
			for _, m := range methods(wrong.Interface()) {
				if !m.Fails {
					continue
				}
				for _, args := range []func(reflect.Type) reflect.Value{misuse.Zero, misuse.Filled(1, noFile), misuse.Filled(1, known...)} {
					_, err := m.Call(args)
					requireNoPanic(t, err)
					var refused *ibverbs.ArgumentError
					require.ErrorAs(t, err, &refused, "%s %s.%s", name, kind, m.Name)
				}
			}
		}
	}
}

func requireNoPanic(t *testing.T, err error) {
	t.Helper()
	var p *misuse.Panic
	require.False(t, errors.As(err, &p), "%v", err)
}

// known are arguments that are right, as far as one can say without the call.
func (r *rig) known(t *testing.T) []any {
	t.Helper()
	mr := keep(t, must(r.pd.Alloc(64, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind))(t))
	send, recv := must(ibverbs.NewSendBatch(1, 1))(t), must(ibverbs.NewRecvBatch(1, 1))(t)
	require.NoError(t, send.Send(1, 0))
	require.NoError(t, recv.Recv(1))
	var wc ibverbs.WC
	cq := r.cq()
	known := []any{
		r.c, r.pd, mr, mr.All(), send, recv, &wc,
		flow.Drop{},
		noFile,
		ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1},
	}
	for _, kind := range []string{"CQ to wait on", "RC QP", "SRQ", "XRCD", "WQ", "indirection table", "AH", "comp counter", "counters", "DM", "DMA handle", "TD", "rule", "CompChannel"} {
		known = append(known, keep(t, kinds[kind](t, r)))
	}
	return known
}

// Nothing that can be closed is missing above.
func TestEveryKind(t *testing.T) {
	want := map[string]bool{}
	for _, pkg := range append(siblings(t), "ibverbs") {
		for name := range declared(t, pkg, `\(\w+ \*([A-Z]\w*)\) Close\(\) error`) {
			want[name] = true
		}
	}
	r := open(t)
	got := map[string]bool{}
	for _, create := range kinds {
		o := create(t, r)
		got[reflect.TypeOf(o).Elem().Name()] = true
		require.NoError(t, o.Close())
	}
	require.Equal(t, want, got)
}

// Nor is a function that does what methods do elsewhere.
func TestEveryFunction(t *testing.T) {
	got := map[string]bool{}
	for _, f := range functions {
		got[misuse.Name(f)] = true
	}
	want := map[string]bool{}
	for _, pkg := range siblings(t) {
		for name := range declared(t, pkg, `([A-Z]\w*)\(\w+ \*ibverbs\.`) {
			want[filepath.Base(pkg)+"."+name] = true
		}
	}
	require.Equal(t, want, got)
}

// siblings returns the folders of the packages below ibverbs, but for those of
// drivers' libraries, which tests/vendor has.
func siblings(t *testing.T) []string {
	t.Helper()
	files := must(filepath.Glob("../../ibverbs/*/doc.go"))(t)
	require.NotEmpty(t, files)
	var folders []string
	for _, file := range files {
		if pkg := filepath.Base(filepath.Dir(file)); pkg != "efa" && pkg != "mlx5" {
			folders = append(folders, "ibverbs/"+pkg)
		}
	}
	return folders
}

// declared returns what the first group of a pattern is in the functions that a
// package declares.
func declared(t *testing.T, pkg, pattern string) map[string]bool {
	t.Helper()
	files := must(filepath.Glob("../../" + pkg + "/*.go"))(t)
	require.NotEmpty(t, files)
	found := map[string]bool{}
	for _, file := range files {
		source := must(os.ReadFile(file))(t)
		for _, m := range regexp.MustCompile(`(?m)^func `+pattern).FindAllSubmatch(source, -1) {
			found[string(m[1])] = true
		}
	}
	return found
}

// Memory that only the device reaches cannot be what C looks at.
func TestHeaderOnDevice(t *testing.T) {
	r := open(t)
	mr := keep(t, kinds["DMA-BUF MR"](t, r)).(*ibverbs.MR)
	s := must(ibverbs.NewSendBatch(1, 1))(t)
	for _, err := range []error{s.TSO(1, mr.Sub(0, 14), 100, 0), s.Send(1, ibverbs.SendInline, mr.All())} {
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "only the device can access it")
	}
	require.Zero(t, s.Len())
}

// A call with an object that is closed fails as one of a closed object does,
// and C does not learn of it.
func TestClosedArguments(t *testing.T) {
	r := open(t)
	closed := map[reflect.Type]closer{}
	for _, kind := range []string{
		"PD", "CompChannel", "CQ", "RC QP", "SRQ", "XRCD", "WQ", "indirection table", "AH", "MW type 2", "MR", "DM", "DMA handle",
		"TD", "counters", "comp counter", "rule", "ESP action",
	} {
		o := kinds[kind](t, r)
		closed[reflect.TypeOf(o)] = o
		require.NoError(t, o.Close())
	}
	cq := closed[reflect.TypeFor[*ibverbs.CQ]()].(*ibverbs.CQ)
	mr := closed[reflect.TypeFor[*ibverbs.MR]()].(*ibverbs.MR)
	known := []any{
		noFile, mr.Sub(0, 8),
		ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1},
		ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, RecvQueue: 1, CQ: cq, MaxTags: 1, MaxTagOps: 1},
	}
	for _, o := range closed {
		known = append(known, o)
	}
	taken := map[reflect.Type]bool{}
	for kind, create := range kinds {
		o := create(t, r)
		r.p.Forget()
		for _, m := range methods(o) {
			objects := closers(m.Takes())
			if len(objects) == 0 {
				continue
			}
			for _, object := range objects {
				taken[object] = true
			}
			_, err := m.Call(misuse.Filled(1, known...))
			require.ErrorIs(t, err, os.ErrClosed, "%s: %s", kind, m.Name)
			require.Empty(t, r.p.Names(), "%s: %s", kind, m.Name)
		}
		require.NoError(t, o.Close())
	}
	require.GreaterOrEqual(t, len(taken), 11, "kinds of objects")

	qp := r.qp(ibverbs.QPTypeRawPacket)
	for _, spec := range []flow.Spec{
		flow.Count{Counters: closed[reflect.TypeFor[*flow.Counters]()].(*flow.Counters)},
		flow.Apply{Action: closed[reflect.TypeFor[*flow.Action]()].(*flow.Action)},
	} {
		_, err := flow.Create(qp, flow.Config{Specs: []flow.Spec{spec}})
		require.ErrorIs(t, err, os.ErrClosed)
	}

	r.p.Forget()
	handle := closed[reflect.TypeFor[*devmem.DMAHandle]()].(*devmem.DMAHandle)
	for name, err := range map[string]error{
		"Register":         second(handle.Register(r.pd, make([]byte, 64), 0)),
		"RegisterImplicit": second(handle.RegisterImplicit(r.pd, 0)),
		"RegisterDMABuf":   second(handle.RegisterDMABuf(r.pd, ibverbs.DMABuf{FD: 3, Length: 64}, 0)),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
	require.Empty(t, r.p.Names())
}

// closers returns the objects that values of the types have.
func closers(types []reflect.Type) (found []reflect.Type) {
	for _, typ := range types {
		switch {
		case typ.Kind() == reflect.Pointer && typ.Implements(reflect.TypeFor[closer]()):
			if strings.HasPrefix(typ.Elem().PkgPath(), reflect.TypeFor[ibverbs.QP]().PkgPath()) {
				found = append(found, typ)
			}
		case typ == reflect.TypeFor[ibverbs.Segment]():
			found = append(found, reflect.TypeFor[*ibverbs.MR]())
		case typ.Kind() == reflect.Slice:
			found = append(found, closers([]reflect.Type{typ.Elem()})...)
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				if typ.Field(i).IsExported() {
					found = append(found, closers([]reflect.Type{typ.Field(i).Type})...)
				}
			}
		}
	}
	return found
}

// What cannot be right is refused before C is called, by an ArgumentError that
// names the operation and the object.
func TestRefusals(t *testing.T) {
	r := open(t)
	other := keep(t, must(ibverbs.Open("fake0"))(t))
	otherCQ := keep(t, must(other.CreateCQ(ibverbs.CQConfig{CompQueue: 1}))(t))
	cq, ud, rc, srq := r.cq(), r.qp(ibverbs.QPTypeUD), r.qp(ibverbs.QPTypeRC), r.srq()
	mr := keep(t, must(r.pd.Alloc(64, 0))(t))
	mw := keep(t, must(r.pd.AllocMW(ibverbs.MWType2))(t))
	dm := keep(t, must(devmem.Alloc(r.c, 64, 0))(t))
	send := must(ibverbs.NewSendBatch(2, 1))(t)
	recv := must(ibverbs.NewRecvBatch(2, 1))(t)
	plain := must(ibverbs.NewSendBatch(1, 0))(t)
	require.NoError(t, plain.Send(7, 0))
	flush := must(ibverbs.NewSendBatch(1, 0))(t)
	require.NoError(t, flush.Flush(1, ibverbs.RemoteBuffer{}, ibverbs.FlushGlobal, 0))
	remote := ibverbs.RemoteBuffer{Addr: 4, Len: 8}
	var none context.Context
	const most = "2147483647"
	r.p.Forget()
	for _, tt := range []struct {
		err  error
		want string
		is   error // nil: EINVAL
	}{
		{second(r.c.QueryPort(0)), "ibv_query_port (fake0): port is 0, not from 1 to 255", nil},
		{second(r.c.QueryPortGIDs(0)), "ibv_query_port (fake0): port is 0, not from 1 to 255", nil},
		{second(r.c.QueryPortSpeed(256)), "ibv_query_port_speed (fake0): port is 256, not from 1 to 255", nil},
		{second(r.c.QueryGID(-1, 0)), "ibv_query_gid (fake0): port is -1, not from 1 to 255", nil},
		{second(r.c.QueryGIDEntry(1, -1)), "ibv_query_gid_ex (fake0 port 1): index is -1, not from 0 to " + most, nil},
		{second(r.c.QueryPKey(1, -1)), "ibv_query_pkey (fake0 port 1): index is -1, not from 0 to " + most, nil},
		{second(r.c.PKeyIndex(0, 0)), "ibv_get_pkey_index (fake0): port is 0, not from 1 to 255", nil},
		{second(r.c.CreateCQ(ibverbs.CQConfig{})), "ibv_create_cq (fake0): CompQueue is 0, not from 1 to " + most, nil},
		{second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: 4})), "ibv_create_cq (fake0): Vector is 4, not from 0 to 3", nil},
		{cq.Resize(0), "ibv_resize_cq (CQ N of fake0): entries is 0, not from 1 to " + most, nil},
		{cq.Moderate(-1, 0), "ibv_modify_cq (CQ N of fake0): completions is -1 and period is 0s, not from 0 to 65535 and from 0 to 65.535ms", nil},
		{second(cq.Spin(nil, 0)), "ibv_poll_cq (CQ N of fake0): no room for completions: wcs is empty", nil},
		{second(cq.Sleep(make([]ibverbs.WC, 1), time.Second)), "CQ.Sleep (CQ N of fake0): the queue was made without CQConfig.Channel", nil},
		{second(cq.Wait(t.Context(), make([]ibverbs.WC, 1))), "CQ.Wait (CQ N of fake0): the queue was made without CQConfig.Channel", nil},
		{second(cq.Wait(none, make([]ibverbs.WC, 1))), "CQ.Wait: ctx is nil", nil},
		{second(r.pd.CreateQP(ibverbs.QPConfig{})), "ibv_create_qp (PD N of fake0): SendCQ or RecvCQ is nil", nil},
		{
			second(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: -1})),
			"ibv_create_qp (PD N of fake0): SendQueue is -1, not from 0 to " + most, nil,
		},
		{
			second(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: otherCQ})),
			"ibv_create_qp (PD N of fake0): CQ N of fake0 belongs to another open device", nil,
		},
		{second(r.pd.CreateSRQ(ibverbs.SRQConfig{})), "ibv_create_srq (PD N of fake0): RecvQueue is 0, not from 1 to " + most, nil},
		{srq.Resize(-1), "ibv_modify_srq (SRQ N of fake0): size is -1, not from 0 to " + most, nil},
		{second(flow.CreateWQ(r.pd, flow.WQConfig{CQ: cq})), "ibv_create_wq (PD N of fake0): RecvQueue is 0, not from 1 to " + most, nil},
		{
			second(flow.CreateIndirectionTable(r.c, make([]*flow.WQ, 0))),
			"ibv_create_rwq_ind_table (fake0): number of work queues is 0, not a power of two up to 1048576", nil,
		},
		{second(r.pd.CreateAH(ibverbs.AHAttr{})), "ibv_create_ah (PD N of fake0): path: port is 0, not from 1 to 255", nil},
		{second(r.pd.CreateAHFromWC(nil, nil, 1)), "ibv_create_ah_from_wc: wc is nil", nil},
		{second(r.pd.Alloc(0, 0)), "ibv_reg_mr (PD N of fake0): size is 0, less than 1", nil},
		{second(r.pd.Register(nil, 0)), "ibv_reg_mr (PD N of fake0): b is empty, and a region has at least one byte", nil},
		{second(r.pd.Alloc(8, ibverbs.AccessRemoteWrite)), "ibv_reg_mr (PD N of fake0): AccessRemoteWrite without AccessLocalWrite", nil},
		{second(r.pd.AllocMW(7)), "ibv_alloc_mw (PD N of fake0): type is 7, neither MWType1 nor MWType2", nil},
		{second(devmem.AllocBuf(r.pd, 0)), "ibv_alloc_buf (PD N of fake0): size is 0, less than 1", nil},
		{second(devmem.Alloc(r.c, 64, 3)), "ibv_alloc_dm (fake0): size is 64 and align is 3; size must be at least 1, and align 0 or a power of two", nil},
		{second(dm.WriteAt(make([]byte, 65), 0)), "ibv_memcpy_to_dm (DM of 64 bytes of fake0): 65 bytes at 0 are outside of its 64 bytes", nil},
		{second(dm.Register(r.pd, 8, 64, 0)), "ibv_reg_dm_mr (PD N of fake0): 64 bytes at 8 of DM of 64 bytes of fake0 are outside of its 64 bytes", nil},
		{mr.Rereg(ibverbs.ReregConfig{}), "ibv_rereg_mr (MR N of fake0): PD, Access and Memory are all nil", nil},
		{r.pd.Advise(ibverbs.AdvicePrefetch, false), "ibv_advise_mr (PD N of fake0): Advise needs at least one segment", nil},
		{
			r.pd.Advise(ibverbs.AdvicePrefetch, false, mr.All()),
			"ibv_advise_mr (PD N of fake0): segment 0: MR N of fake0 does not have AccessOnDemand", nil,
		},
		{second(mr.Sub(1, 64).Remote()), "Segment.Remote: segment of 64 bytes at 1 is outside MR N of fake0 of 64 bytes", nil},
		{
			mw.Bind(rc, 1, 0, ibverbs.Binding{Memory: mr.All()}),
			"ibv_bind_mw (MW N of fake0): the window is not of type 1", nil,
		},
		{
			send.BindMW(1, mw, ibverbs.Binding{Memory: mr.All()}, 0),
			"SendBatch.BindMW (MW N of fake0): MR N of fake0 does not have AccessWindowBind", nil,
		},
		{ud.Modify(ibverbs.QPAttr{}, ibverbs.QPAttrPort), "ibv_modify_qp (QP N of fake0): port is 0, not from 1 to 255", nil},
		{ud.SetRateLimit(ibverbs.RateLimit{MaxBurst: -1}), "ibv_modify_qp_rate_limit (QP N of fake0): MaxBurst is -1 and TypicalPacket is 0, not from 0 to 4294967295 and from 0 to 65535", nil},
		{rc.AttachMulticast(ibverbs.GID{}, 0), "ibv_attach_mcast (QP N of fake0): the queue pair is of type IBV_QPT_RC, not IBV_QPT_UD", nil},
		{ud.AttachMulticast(ibverbs.GID{}, 0), "ibv_attach_mcast (QP N of fake0): GID 0000:0000:0000:0000:0000:0000:0000:0000 is not that of a multicast group", nil},
		{
			rc.ConnectTo(ibverbs.QPAddr{}, ibverbs.QPAddr{}, ibverbs.ConnectConfig{}),
			"QP.ConnectTo (QP N of fake0): local address: queue pair number is 0x0, not from 0x1 to 0xffffff", nil,
		},
		{
			second(r.pd.CreateDestination(ibverbs.QPAddr{}, ibverbs.QPAddr{})),
			"PD.CreateDestination (PD N of fake0): local address: queue pair number is 0x0, not from 0x1 to 0xffffff", nil,
		},
		{
			rc.Activate(ibverbs.QPAddr{}, 0),
			"QP.Activate (QP N of fake0): local address: queue pair number is 0x0, not from 0x1 to 0xffffff", nil,
		},
		{second(ibverbs.NewSendBatch(0, 1)), "make a batch: the number of requests is 0 and of segments 1, not from 1 to 1048576 and from 0 to 1024", nil},
		{send.Send(1, 0, mr.Sub(0, 65)), "ibv_post_send (IBV_WR_SEND, request 0 of the batch): segment 0: segment of 65 bytes at 0 is outside MR N of fake0 of 64 bytes", nil},
		{send.Write(1, remote.Sub(0, 7), 0, mr.Sub(0, 8)), "ibv_post_send (IBV_WR_RDMA_WRITE, request 0 of the batch): 8 bytes do not fit into the remote buffer of 7 bytes", nil},
		{
			send.Read(1, remote, 0, mr.Sub(0, 8)),
			"ibv_post_send (IBV_WR_RDMA_READ, request 0 of the batch): " +
				"segment 0: MR N of fake0 is without AccessLocalWrite, so the device cannot write to it", nil,
		},
		{
			send.FetchAdd(1, remote, 1, 0, mr.Sub(0, 8)),
			"ibv_post_send (IBV_WR_ATOMIC_FETCH_AND_ADD, request 0 of the batch): the address of an atomic operation is 0x4, not a multiple of 8", nil,
		},
		{send.SendTo(1, ibverbs.Destination{}, 0), "ibv_post_send (IBV_WR_SEND, request 0 of the batch): datagram without an address handle", nil},
		{send.WR(0).SetID(1), "ibv_post_send (request 0): the batch has 0 requests", nil},
		{plain.WR(0).SetImm(1), "ibv_post_send (IBV_WR_SEND, request 0 of the batch): the request has no immediate data", nil},
		{recv.Recv(1, mr.All()), "ibv_post_recv (receive 0 of the batch): segment 0: MR N of fake0 is without AccessLocalWrite, so the device cannot write to it", nil},
		{recv.WR(0).SetID(1), "ibv_post_recv (receive 0): the batch has 0 receives", nil},
		{
			second(rc.PostSend(nil)),
			"ibv_post_send (QP N of fake0): the batch is nil, or was not made by the package's functions", nil,
		},
		{
			second(ud.PostSend(plain)),
			"request 0 of the batch (ID 7), none was posted: ibv_post_send (IBV_WR_SEND on QP N of fake0): " +
				"a queue pair of type IBV_QPT_UD takes only datagrams, such as those of SendTo", nil,
		},
		{
			second(rc.PostSend(flush)),
			"request 0 of the batch (ID 1), none was posted: ibv_post_send (IBV_WR_FLUSH on QP N of fake0): " +
				"the queue pair was made without QPConfig.SendOps", errors.ErrUnsupported,
		},
		{second(devmem.AllocDMAHandle(r.c, devmem.DMAHandleConfig{CPU: new(-1)})), "ibv_alloc_dmah (fake0): CPU is -1, not from 0 to 4294967295", nil},
		{second(devmem.Import(r.c, devmem.Export{})), "ibv_import_dm (DM 0 of 0 bytes of fake0): Len is 0, not from 1 to 9223372036854775807", nil},
		{second(share.ImportMR(r.pd, share.MRExport{Len: math.MaxUint64})), "ibv_import_mr (MR of handle 0 on PD N of fake0): Len is 18446744073709551615, more than 9223372036854775807", nil},
		{third(ibverbs.OpenNetDev("")), "OpenNetDev: name is empty", nil},
	} {
		var refused *ibverbs.ArgumentError
		require.ErrorAs(t, tt.err, &refused, tt.want)
		require.NotEmpty(t, refused.Op)
		var failed *ibverbs.Error
		require.False(t, errors.As(tt.err, &failed), tt.want)
		requirePublic(t, tt.err)
		require.Equal(t, tt.want, regexp.MustCompile(`\b(CQ|PD|QP|SRQ|MW|MR) (0x[0-9a-f]+|\d+) of`).ReplaceAllString(tt.err.Error(), "$1 N of"))
		if tt.is == nil {
			tt.is = syscall.EINVAL
		}
		require.ErrorIs(t, tt.err, tt.is)
	}
	require.Empty(t, r.p.Names(), "C is not called")
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

// requirePublic looks for errors of types that users cannot name.
func requirePublic(t *testing.T, err error) {
	t.Helper()
	for _, internal := range []any{
		new(*cerr.Error), new(*cerr.ArgumentError), new(*cerr.BusyError), new(*cerr.ReregError), new(*cerr.SymbolError), new(*cerr.LibraryError),
	} {
		require.False(t, errors.As(err, internal), "%T: %v", internal, err)
	}
}
