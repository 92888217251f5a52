//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"bytes"
	"testing"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// closer is an object of package ibverbs or flow.
type closer interface{ Close() error }

// kinds make an object of each kind that there is; what it needs stays open
// until the end of the test.
var kinds = map[string]func(t *testing.T, r *rig) closer{
	"Context": func(t *testing.T, _ *rig) closer { return must(ibverbs.Open("fake0"))(t) },
	"PD":      func(t *testing.T, r *rig) closer { return must(r.c.AllocPD())(t) },
	"imported PD": func(t *testing.T, r *rig) closer {
		return must(r.c.ImportPD(r.pd.Handle()))(t)
	},
	"parent domain": func(t *testing.T, r *rig) closer {
		return must(r.pd.AllocParentDomain(keep(t, must(r.c.AllocTD())(t))))(t)
	},
	"TD":      func(t *testing.T, r *rig) closer { return must(r.c.AllocTD())(t) },
	"MR":      func(t *testing.T, r *rig) closer { return must(r.pd.Alloc(64, ibverbs.AccessLocalWrite))(t) },
	"null MR": func(t *testing.T, r *rig) closer { return must(r.pd.AllocNullMR())(t) },
	"DMA-BUF MR": func(t *testing.T, r *rig) closer {
		return must(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: 3, Length: 64}, 0))(t)
	},
	"imported MR": func(t *testing.T, r *rig) closer { return must(r.pd.ImportMR(ibverbs.MRExport{Handle: 7, Len: 64}))(t) },
	"MR of DM": func(t *testing.T, r *rig) closer {
		return must(keep(t, must(r.c.AllocDM(64, 0))(t)).Register(r.pd, 0, 64, 0))(t)
	},
	"DM":          func(t *testing.T, r *rig) closer { return must(r.c.AllocDM(64, 0))(t) },
	"imported DM": func(t *testing.T, r *rig) closer { return must(r.c.ImportDM(ibverbs.DMExport{Handle: 7, Len: 64}))(t) },
	"Buf":         func(t *testing.T, r *rig) closer { return must(r.pd.AllocBuf(64))(t) },
	"DMA handle":  func(t *testing.T, r *rig) closer { return must(r.c.AllocDMAHandle(ibverbs.DMAHandleConfig{}))(t) },
	"MW type 1":   func(t *testing.T, r *rig) closer { return must(r.pd.AllocMW(ibverbs.MWType1))(t) },
	"MW type 2":   func(t *testing.T, r *rig) closer { return must(r.pd.AllocMW(ibverbs.MWType2))(t) },
	"CompChannel": func(t *testing.T, r *rig) closer { return must(r.c.CreateCompChannel())(t) },
	"CQ":          func(t *testing.T, r *rig) closer { return must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 8}))(t) },
	"CQ to wait on": func(t *testing.T, r *rig) closer {
		ch := keep(t, must(r.c.CreateCompChannel())(t))
		return must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 8, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	},
	"RC QP":         func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeRC) },
	"UD QP":         func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeUD) },
	"raw packet QP": func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeRawPacket) },
	"opened QP": func(t *testing.T, r *rig) closer {
		return must(keep(t, must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t)).OpenQP(5))(t)
	},
	"RSS QP": func(t *testing.T, r *rig) closer {
		key := bytes.Repeat([]byte{1}, flow.RSSKeyLen)
		return must(flow.CreateRSSQP(r.pd, flow.RSSConfig{Table: r.table(), Key: key}))(t)
	},
	"SRQ":  func(t *testing.T, r *rig) closer { return must(r.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: 8}))(t) },
	"XRCD": func(t *testing.T, r *rig) closer { return must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t) },
	"WQ": func(t *testing.T, r *rig) closer {
		return must(r.pd.CreateWQ(ibverbs.WQConfig{CQ: r.cq(), MaxWR: 4}))(t)
	},
	"indirection table": func(t *testing.T, r *rig) closer {
		return must(flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{r.wq()}))(t)
	},
	"AH":           func(t *testing.T, r *rig) closer { return must(r.pd.CreateAH(ibverbs.AHAttr{Port: 1, DLID: 5}))(t) },
	"counters":     func(t *testing.T, r *rig) closer { return must(flow.CreateCounters(r.c))(t) },
	"comp counter": func(t *testing.T, r *rig) closer { return must(r.c.CreateCompCounter(ibverbs.CountBytes))(t) },
	"rule": func(t *testing.T, r *rig) closer {
		return must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{Specs: []flow.Spec{flow.Drop{}}}))(t)
	},
	"ESP action": func(t *testing.T, r *rig) closer {
		return must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, 16), ICVLen: 8}}))(t)
	},
}

// functions take an object first, and do with it what a method would do.
var functions = []any{
	flow.Create, flow.CreateESPAction, flow.CreateCounters, flow.CreateIndirectionTable, flow.CreateRSSQP,
}

// methods returns the methods of an object, and the functions that take it first.
func methods(o any) []misuse.Method { return misuse.Methods(o, functions...) }

func (r *rig) misusedQP(t *testing.T, qpType ibverbs.QPType) *ibverbs.QP {
	t.Helper()
	cq := r.cq()
	return must(r.pd.CreateQP(ibverbs.QPConfig{Type: qpType, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}))(t)
}
