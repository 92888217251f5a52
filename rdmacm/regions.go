package rdmacm

import (
	"slices"

	"github.com/verbena-go/verbena/ibverbs"
)

// regions are memory regions that are closed with what they belong to, if not
// before.
type regions []*ibverbs.MR

// add adds a region, and forgets those that are closed.
func (r *regions) add(mr *ibverbs.MR) {
	isClosed := func(mr *ibverbs.MR) bool { return mr.Bytes() == nil }
	*r = append(slices.DeleteFunc(*r, isClosed), mr)
}

// close closes all. After an error it can be called again.
func (r *regions) close() error {
	for len(*r) > 0 {
		if err := (*r)[0].Close(); err != nil {
			return err
		}
		*r = (*r)[1:]
	}
	return nil
}
