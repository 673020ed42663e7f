! Behaviour: a Fortran program allocates, grows and frees arrays in a subroutine of a known name.
program fortran_program
  implicit none
  integer :: turn
  double precision :: total
  total = 0
  do turn = 1, 2000
     total = total + sum_of_squares(mod(turn, 500) + 1)
  end do
  print '(a,f0.0)', 'total ', total
contains
  function sum_of_squares(count) result(total)
    integer, intent(in) :: count
    double precision :: total
    double precision, allocatable :: values(:), grown(:)
    integer :: at
    allocate(values(count))
    do at = 1, count
       values(at) = dble(at) * at
    end do
    allocate(grown(2 * count))
    grown(1:count) = values
    grown(count + 1:) = 0
    call move_alloc(grown, values)
    total = sum(values)
    deallocate(values)
  end function sum_of_squares
end program fortran_program
