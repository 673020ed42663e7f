<?php
// Imagick 3.7.0 loses kernels of ImagickKernel::separate. A table of 2,000 strings has a bound.
function handle(int $number): int
{
    $kernel = ImagickKernel::fromMatrix(array_fill(0, 15, array_fill(0, 15, $number % 7)), [7, 7]);
    $kernel->scale(2.0);
    return count($kernel->separate()) + count($kernel->getMatrix());
}

$end = microtime(true) + (float) $argv[1];
$answers = [];
for ($number = 0; microtime(true) < $end; $number++) {
    handle($number);
    $answers[$number % 2000] = str_repeat("x", 500) . $number;
    if ($number % 20 == 0) {
        usleep(4000);
    }
}
