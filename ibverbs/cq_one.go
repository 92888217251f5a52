package ibverbs

import (
	"context"
	"errors"
	"iter"
)

// WaitOne waits for one completion and takes it, as Wait does for many, which
// costs less for each. If the work request failed, the error is its *WCError,
// and the WC says which request it was; any other error is one of Wait's.
// See ibv_poll_cq(3).
func (cq *CQ) WaitOne(ctx context.Context) (WC, error) {
	var wcs [1]WC
	if _, err := cq.Wait(ctx, wcs[:]); err != nil {
		return WC{}, err
	}
	return wcs[0], wcs[0].Err()
}

// Completions returns an iterator over what WaitOne returns. It goes on after
// work requests that failed, and ends after the first error of another kind,
// which is that of ctx, os.ErrClosed, or a failure. It takes no completion that
// it does not give, so the loop may end at any one.
//
//	for wc, err := range cq.Completions(ctx) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(wc.ID(), wc.ByteLen())
//	}
func (cq *CQ) Completions(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		for {
			wc, err := cq.WaitOne(ctx)
			var failed *WCError
			if !yield(wc, err) || err != nil && !errors.As(err, &failed) {
				return
			}
		}
	}
}
