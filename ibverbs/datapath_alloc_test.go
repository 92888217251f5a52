//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDataPathAllocatesNothing(t *testing.T) {
	f := newFakeDevice(t)
	f.Endless()
	mr, ah := fakeMR(t, 4096, 1), fakeAH()
	b := filled(t, mr, 32)
	other := filled(t, mr, 32)
	wcs, ex := make([]WC, 32), make([]WCEx, 32)
	to := Destination{AH: ah}
	remote := mr.Remote()
	remote.Addr &^= 7
	for name, do := range map[string]func() error{
		"post":          func() error { _, err := f.qp.PostSend(b); return err },
		"post extended": func() error { _, err := f.ex.PostSend(b); return err },
		"post and spin": func() error { _, _, err := f.qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin); return err },
		"poll":          func() error { _, err := f.cq.Poll(wcs); return err },
		"spin":          func() error { _, err := f.cq.Spin(wcs, MaxSpin); return err },
		"poll extended": func() error { _, err := f.cq.PollEx(ex); return err },
		"poll or arm": func() error {
			_, err := f.cq.pollOrArm(opPoll, f.cq.plain(), len(wcs), unsafePointer(wcs))
			return err
		},
		"fill": func() error {
			b := other
			b.Reset()
			return errors.Join(b.SendInv(1, 2, SendInline, mr.Sub(0, 8)), b.SendTo(1, to, 0, mr.Sub(0, 8)),
				b.SendImmTo(1, to, 2, 0), b.CompareSwap(1, remote, 1, 2, 0, mr.Sub(0, 8)),
				b.FetchAdd(1, remote, 1, 0, mr.Sub(0, 8)), b.AtomicWrite(1, remote, [8]byte{}, 0),
				b.Flush(1, remote, FlushGlobal, 0), b.LocalInv(1, 2, 0), b.TSO(1, mr.Sub(0, 8), 9, 0, mr.Sub(0, 8)))
		},
	} {
		require.NoError(t, do(), name)
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = do() }), name)
	}
}
