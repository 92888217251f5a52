package ibverbs

import (
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// RegisterImplicit registers the whole address space of this process for
// paging on demand, which AccessOnDemand need not be given for; see
// ibv_reg_mr(3). Segments and remote buffers of it have addresses as offsets.
// Memory of Go's heap must be pinned (runtime.Pinner) while a request uses it.
// The region has no Bytes. A device that cannot do it gives
// errors.ErrUnsupported, or syscall.EINVAL if it cannot do it WithDMAHandle.
func (pd *PD) RegisterImplicit(access AccessFlags, options ...RegisterOption) (*MR, error) {
	if o := registerOptionsOf(options, 0); o.withHandle {
		return pd.registerDMAImplicit(o.handle, access)
	}
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	access |= AccessOnDemand
	if err := pd.checkImplicit("ibv_reg_mr", access); err != nil {
		return nil, err
	}
	raw, err := libibverbs.RegMr(pd.raw, nil, math.MaxUint64, int32(access))
	if err != nil {
		return nil, wrap("the whole address space on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, size: math.MaxInt}), nil
}

// checkImplicit looks at a region over the whole address space.
func (pd *PD) checkImplicit(op string, access AccessFlags) error {
	if problem := accessProblem(access); problem != "" {
		return badMR(op, pd, "%s", problem)
	}
	if access&(AccessHugeTLB|AccessZeroBased) != 0 {
		return badMR(op, pd, "%s for the whole address space", accessName(access&(AccessHugeTLB|AccessZeroBased)))
	}
	return pd.checkOnDemand(op, libibverbs.IBV_ODP_SUPPORT|libibverbs.IBV_ODP_SUPPORT_IMPLICIT)
}

// Advice is what the device can be told about memory that it pages on demand.
type Advice = libibverbs.IbUverbsAdviseMrAdvice

// The advices: fetch pages before they are needed.
const (
	AdvicePrefetch        = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH          // for reading
	AdvicePrefetchWrite   = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE    // for writing too
	AdvicePrefetchNoFault = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT // only those that are in memory
)

// Advise gives the device an advice about pieces of regions with
// AccessOnDemand, which must belong to the domain; see ibv_advise_mr(3). With
// flush, it returns when the device knows the pages. That the pages stay is
// not promised. A device without such advices gives errors.ErrUnsupported.
func (pd *PD) Advise(advice Advice, flush bool, segments ...Segment) error {
	const op = "ibv_advise_mr"
	objects := []*object.Object{pd.self()}
	for _, s := range segments {
		objects = append(objects, s.mr.self())
	}
	done, err := object.UseAll(objects...)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	if len(segments) == 0 {
		return badMR(op, pd, "no segments")
	}
	sges := make([]libibverbs.Sge, len(segments))
	for i, s := range segments {
		if err := s.check(); err != nil {
			return cerr.Argument(op, pd.object.Name(), inSegment(i, err))
		}
		if problem := adviceProblem(pd, advice, s.mr); problem != "" {
			return cerr.Refuse(op, pd.object.Name(), "segment %d: %s %s", i, s.mr.object.Name(), problem)
		}
		sges[i] = s.sge()
	}
	var flags uint32
	if flush {
		flags = uint32(libibverbs.IBV_ADVISE_MR_FLAG_FLUSH)
	}
	err = libibverbs.AdviseMr(pd.raw, advice, flags, &sges[0], uint32(len(sges)))
	return wrap(fmt.Sprintf("%d segments on %s", len(sges), pd.object.Name()), err)
}

func adviceProblem(pd *PD, advice Advice, mr *MR) string {
	switch {
	case mr.keyOnly:
		return "is of no memory region"
	case mr.pd.raw != pd.raw:
		return "belongs to " + mr.pd.object.Name() + ", not to " + pd.object.Name()
	case mr.access&AccessOnDemand == 0:
		return "is without AccessOnDemand"
	case advice == AdvicePrefetchWrite && mr.access&AccessLocalWrite == 0:
		return "is without AccessLocalWrite"
	}
	return ""
}
