// Behaviour: hides `_dl_find_object`, which a loader before glibc 2.35 does not have.
__asm__(".globl _dl_find_object\n"
        ".type _dl_find_object, %object\n"
        ".set _dl_find_object, 0\n");
